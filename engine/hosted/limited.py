"""Runs a command, whose processes may mean harm, within limits of time, output, memory and disk.

The thread that starts it watches it to its end: what the kernel does not limit for a group of processes (their memory
together, the size of a folder) is looked at every few milliseconds. Killing the command must end all its processes,
which is what a PID namespace is for (see sandbox.py).
"""

import os
import select
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

_TICK_S: Final = 0.05
_TICKS_PER_SCAN: Final = 5  # a folder is looked at less often: it takes longer, and a disk is slower than memory
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PIECE: Final = 65_536
_KILL_S: Final = 5.0


class Limits(msgspec.Struct, frozen=True):
    """What a command may use. max_memory_bytes: resident, of all processes together."""

    timeout_s: float
    max_output_bytes: int
    max_memory_bytes: int
    max_disk_bytes: int
    max_files: int


class End(Enum):
    """How a command came to its end."""

    EXITED = "exited"
    TOO_SLOW = "time"
    TOO_TALKATIVE = "output"
    TOO_BIG = "memory"
    TOO_FULL = "disk"


class Outcome(msgspec.Struct, frozen=True):
    """Output, both streams in one, as far as it was read; the exit status means something for EXITED only."""

    end: End
    status: int
    output: bytes


def run_limited(
    command: Sequence[str],
    stdin: bytes,
    folder: Path,
    limits: Limits,
    check: Callable[[], None],
    pass_fds: Sequence[int] = (),
) -> Outcome:
    """Run it to its end, which a limit may be. Blocks: to be called in a thread.

    folder: the one that the command may write to. check: is called on and on, and may raise to end the command.
    """
    # The same thread starts the command and waits: it is what `--die-with-parent` takes for the parent.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=pass_fds
    ) as process:
        try:
            return _Watch(process, stdin, folder, limits, check).run()
        finally:
            process.kill()
            process.wait(_KILL_S)


class _Watch:
    def __init__(
        self, process: "subprocess.Popen[bytes]", stdin: bytes, folder: Path, limits: Limits, check: Callable[[], None]
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = memoryview(stdin)
        self._in, self._out = process.stdin, process.stdout
        os.set_blocking(self._in.fileno(), False)
        self._folder = folder
        self._limits = limits
        self._check = check
        self._output = bytearray()

    def run(self) -> Outcome:
        deadline = time.monotonic() + self._limits.timeout_s
        next_tick = 0.0
        tick = 0
        while True:
            self._check()
            if self._move(_TICK_S):
                return Outcome(End.EXITED, self._process.wait(_KILL_S), bytes(self._output))
            now = time.monotonic()
            if now < next_tick and len(self._output) <= self._limits.max_output_bytes:
                continue
            next_tick, tick = now + _TICK_S, tick + 1
            if (end := self._exceeded(now > deadline, tick % _TICKS_PER_SCAN == 0)) is not None:
                return Outcome(end, -1, bytes(self._output[: self._limits.max_output_bytes]))

    def _move(self, timeout_s: float) -> bool:
        """Read and write what can be. True when there is no more to read: whoever could write has gone."""
        poll = select.poll()  # select takes no descriptor beyond 1,023, which a server of many connections has
        poll.register(self._out, select.POLLIN)
        if not self._in.closed:
            poll.register(self._in, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(timeout_s * 1000)}
        if not self._in.closed and self._in.fileno() in ready:
            self._write()
        if self._out.fileno() not in ready:
            return False
        piece = os.read(self._out.fileno(), _PIECE)
        self._output += piece
        return not piece

    def _write(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._in.fileno(), self._stdin[:_PIECE]) :]
        except BrokenPipeError:
            self._stdin = self._stdin[:0]  # it does not want to know
        if not self._stdin:
            self._in.close()

    def _exceeded(self, is_late: bool, is_scan: bool) -> End | None:
        limits = self._limits
        if len(self._output) > limits.max_output_bytes:
            return End.TOO_TALKATIVE
        if is_late:
            return End.TOO_SLOW
        if resident_bytes(self._process.pid) > limits.max_memory_bytes:
            return End.TOO_BIG
        max_disk_bytes = limits.max_disk_bytes - (hidden_bytes(self._process.pid, self._folder) if is_scan else 0)
        if is_scan and exceeds(self._folder, max_disk_bytes, limits.max_files):
            return End.TOO_FULL
        return None


def resident_bytes(pid: int) -> int:
    """Memory of a process and all that descend from it; shared pages count for each."""
    return sum(map(_resident_bytes, _family(pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):  # it may end at any moment
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield from _family(int(child))


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def hidden_bytes(pid: int, folder: Path) -> int:
    """What a process and its descendants hold open on the folder's disk without a name: it goes when they close it."""
    device = folder.stat().st_dev
    sizes: dict[int, int] = {}
    for member in _family(pid):
        for found in _open_files(member):
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device:
                sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _open_files(pid: int) -> Iterator[os.stat_result]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                yield os.stat(f"/proc/{pid}/fd/{name}")


def exceeds(folder: Path, max_bytes: int, max_files: int) -> bool:
    """Whether a folder holds more than that. Links are not followed; looking ends where it is sure.

    What nobody can look into, such as a path longer than paths may be, is taken for more.
    """
    num_bytes = num_files = 0
    left = [os.fspath(folder)]
    while left:
        try:
            with suppress(FileNotFoundError), os.scandir(left.pop()) as entries:  # it may go at any moment
                for entry in entries:
                    num_files += 1
                    with suppress(FileNotFoundError):
                        num_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            left.append(entry.path)
                    if num_bytes > max_bytes or num_files > max_files:
                        return True
        except OSError:
            return True
    return num_bytes > max_bytes
