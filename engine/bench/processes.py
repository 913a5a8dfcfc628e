"""Servers of a bench, each a process of its own: what is measured never shares an event loop with what measures."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio


@dataclass(frozen=True)
class Served:
    """A running server process."""

    process: trio.Process
    port: int

    def resident_bytes(self) -> int:
        """Resident memory now. Linux only: /proc/PID/statm counts pages."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time that all its threads have used so far. Linux only."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # as clock_getcpuclockid(3) makes it, CPUCLOCK_SCHED


@asynccontextmanager
async def open_peer(kind: str) -> AsyncIterator[Served]:
    """A bare peer (see peers.py)."""
    async with _open([sys.executable, "-m", "engine.bench.peers", kind]) as served:
        yield served


@asynccontextmanager
async def open_service() -> AsyncIterator[Served]:
    """A service that gives token ids (see service.py)."""
    async with _open([sys.executable, "-m", "engine.bench.service"]) as served:
        yield served


@asynccontextmanager
async def open_longloop(scenario: str, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """A longloop server that plays `scenario` (YAML text, written into `folder`, where it keeps its data, too)."""
    file = folder / "bench.yaml"
    file.write_text(scenario)
    async with open_server(folder, backend=f"script:{file}", **settings) as served:
        yield served


@asynccontextmanager
async def open_scripts(scenarios: Mapping[str, str], folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """The same with several scenarios at once, each a model under its name."""
    for name, text in scenarios.items():
        (folder / f"{name}.yaml").write_text(text)
    models = ", ".join(f'"{name}" = {{backend = "script:{folder / name}.yaml"}}' for name in scenarios)
    async with open_server(folder, models=f"{{{models}}}", **settings) as served:
        yield served


@asynccontextmanager
async def open_server(folder: Path, config: Path | None = None, **settings: object) -> AsyncIterator[Served]:
    """A longloop server with these settings, which go before those of a file; it keeps its data in `folder`."""
    settings = {"data_dir": folder / "data"} | settings  # not the user's, where another server may be at work
    assignments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    file = [] if config is None else ["--config", str(config)]
    async with _open([sys.executable, "-m", "engine", "serve", "--port", "0", *file, *assignments]) as served:
        yield served


@asynccontextmanager
async def _open(command: list[str]) -> AsyncIterator[Served]:
    """Start it, read its port from the end of its first line, stop it at the end."""
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        with trio.fail_after(60):
            line = await _first_line(process)
        yield Served(process, int(line.rpartition(":")[2].partition("/")[0]))
    finally:
        process.terminate()
        with trio.move_on_after(5, shield=True):
            await process.wait()
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()


async def _first_line(process: trio.Process) -> str:
    assert process.stdout is not None
    text = b""
    while b"\n" not in text:
        part = await process.stdout.receive_some()
        if not part:
            raise RuntimeError(f"the process ended with {await process.wait()} before it listened")
        text += part
    return text.partition(b"\n")[0].decode().strip()
