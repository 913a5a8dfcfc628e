"""`longloop serve` as users start it: a process of its own, its URL read from stdout, stopped by SIGTERM."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from tests.peers.npm import ROOT

_START_S: Final = 20
_STOP_S: Final = 20  # it takes one; beside other test runs on two cores more than five were seen


class ServerProcess:
    """A running server: where it listens, and what it has logged."""

    def __init__(self, process: trio.Process, url: str, log_file: Path) -> None:
        self._process = process
        self._is_stopping = False
        self.is_killed = False
        self.url = url
        self.port = urlsplit(url).port or 0
        self._log_file = log_file

    def terminate(self) -> None:
        """Tell it to stop, once: a second signal would not wait for anything."""
        if not self._is_stopping:
            self._process.terminate()
        self._is_stopping = True

    def kill_softly(self) -> None:
        """Tell it a second time: it should wait for nothing more. By another signal; the same twice may come as one."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Let it die on the spot, as `kill -9` does."""
        self.is_killed = self._is_stopping = True
        self._process.kill()

    async def wait(self) -> int:
        """Wait until it has ended; its return code."""
        return await self._process.wait()

    @property
    def log(self) -> str:
        """Everything on its stderr so far."""
        return self._log_file.read_text("utf-8")


@asynccontextmanager
async def open_server(backend: str, log_file: Path, port: int = 0, **settings: Any) -> AsyncIterator[ServerProcess]:
    """A server with this backend, its stderr in `log_file`. Fails when it logs an error or, unless killed, ends badly.

    Without a `data_dir` of its own it stores nothing, since only one server may use one.
    """
    told = {"drain_s": 1, "lifecycle": "append"} | settings
    if "data_dir" not in told:
        told.setdefault("store", "none")
    flags = [flag for name, value in told.items() for flag in ("--set", f"{name}={_toml(value)}")]
    command = [sys.executable, "-m", "engine", "serve", "--backend", backend, "--port", str(port)]
    with open(log_file, "wb") as log:
        process = await trio.lowlevel.open_process(
            [*command, *flags], stdin=DEVNULL, stdout=PIPE, stderr=log, cwd=str(ROOT)
        )
    try:
        server = ServerProcess(process, await _read_url(process, log_file), log_file)
        yield server
        server.terminate()
        with trio.fail_after(_STOP_S):
            returncode = await process.wait()
        assert returncode == 0 or server.is_killed, f"the server ended with {returncode}:\n{server.log}"
        assert "ERROR" not in server.log, server.log
    finally:
        if process.returncode is None:
            process.kill()
        assert process.stdout is not None
        with trio.CancelScope(shield=True):  # killed, so it is over at once
            await process.wait()
            await process.stdout.aclose()


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _read_url(process: trio.Process, log_file: Path) -> str:
    assert process.stdout is not None
    line = b""
    with trio.fail_after(_START_S):
        while not line.endswith(b"\n"):
            part = await process.stdout.receive_some()
            assert part, f"the server did not start:\n{log_file.read_text('utf-8')}"
            line += part
    return line.decode().split()[-1]
