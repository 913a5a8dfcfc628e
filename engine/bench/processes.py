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
    async with open_process(*command[1:], program=command[0]) as process:
        assert process.stdout is not None
        with trio.fail_after(60):
            line = await LineReader(process.stdout).next_line()
        yield Served(process, int(line.rpartition(":")[2].partition("/")[0]))


@asynccontextmanager
async def open_process(
    *arguments: str, program: str = sys.executable, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[trio.Process]:
    """A process with its stdin and stdout; stopped at the end."""
    process = await trio.lowlevel.open_process(
        [program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        yield process
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


class LineReader:
    """Lines of a process's output."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._text = b""

    async def next_line(self) -> str:
        """The next one. Raises RuntimeError when the output ends before it does."""
        while b"\n" not in self._text:
            part = await self._stream.receive_some()
            if not part:
                raise RuntimeError("the process ended before it said what was waited for")
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().strip()
