"""Python code in a bubblewrap sandbox: no network, one folder to write to, limits for all that it could use up.

    namespaces   user, PID, network, IPC, UTS, cgroup: nothing of the machine is seen but /usr, read-only, and /proc
    folder       the run's own, as /mnt/data; /tmp and /dev/shm are small and in memory, all else is read-only
    rlimits      address space, CPU time, file size, open files of each process; number of processes of the sandbox
    watched      time, output, memory of all processes, size of the folder (limited.py)
    seccomp      see seccomp.py
    priority     low for CPU, and the first to go when the machine runs out of memory

A server that runs as root gives its sandboxes user ids of their own, which nobody else has: root is not counted by the
limit on processes.
"""

import os
import platform
import secrets
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import trio

from engine.errors import ServerError
from engine.hosted import cell
from engine.hosted.limited import End, Limits, Outcome, run_limited
from engine.hosted.seccomp import seccomp_program
from engine.settings import Settings

_TOOLS: Final = ("bwrap", "prlimit", "nice", "choom", "setpriv")
_SCRATCH_BYTES: Final = 16 << 20  # of /tmp, and of /dev/shm
_MAX_OPEN_FILES: Final = 128
_FIRST_UID: Final = 0x6000_0000  # far beyond what systems and directories hand out
_GONE_S: Final = 5.0  # for processes that have been killed
_DATA: Final = "/mnt/data"


class SandboxMissing(ServerError):
    """Code cannot be run on this machine; the message says what to do."""


class SandboxLimits(msgspec.Struct, frozen=True):
    """See the settings `code_…` and `max_code_…`."""

    timeout_s: float = 60.0
    max_output_bytes: int = 200_000
    max_memory_bytes: int = 1 << 30
    max_disk_bytes: int = 256 << 20
    max_files: int = 10_000
    max_processes: int = 32

    def watched(self) -> Limits:
        """What no rlimit limits."""
        return Limits(self.timeout_s, self.max_output_bytes, self.max_memory_bytes, self.max_disk_bytes, self.max_files)


class Folder(msgspec.Struct, frozen=True):
    """A place for the files of one run, and the user id that owns them."""

    path: Path
    uid: int


class Sandbox:
    """Runs code; any number of runs at the same time, each in a folder of its own."""

    def __init__(self, limits: SandboxLimits, python: str = "", max_at_once: int = 4) -> None:
        """python: an interpreter, perhaps a virtual environment's; empty: the machine's. Raises SandboxMissing."""
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            raise SandboxMissing(
                f"code_interpreter needs bubblewrap and util-linux, and {', '.join(missing)} was not found. "
                "On Debian and Ubuntu: apt install bubblewrap util-linux."
            )
        try:
            self._program = seccomp_program(platform.machine())
        except LookupError as error:
            raise SandboxMissing(f"code_interpreter: {error.args[0]}.") from error
        self._limits = limits
        self._threads = trio.CapacityLimiter(max_at_once)
        self._python = python or _machines_python()
        self._script = Path(cell.__file__).read_text()

    async def try_out(self, parent: Path) -> None:
        """Run a line of code. Raises SandboxMissing where that does not work, and says why."""
        folder = make_folder(parent)
        try:
            outcome = await self.run("print(6 * 7)", folder)
        finally:
            remove_folder(folder)
        if outcome.output.strip() != b"42":
            why = outcome.output.decode(errors="replace").strip()[-300:] or outcome.end.value
            raise SandboxMissing(f"code_interpreter cannot run {self._python} in bubblewrap on this machine: {why}")

    async def run(self, code: str, folder: Folder) -> Outcome:
        """Run a program to its end, when a place is free. Ends it when cancelled."""
        return await trio.to_thread.run_sync(partial(self._run, code, folder), limiter=self._threads)

    def _run(self, code: str, folder: Folder) -> Outcome:
        with _pipe() as (program, give_program), _pipe() as (info, give_info):
            os.write(give_program.fileno(), self._program)
            give_program.close()
            fds = [program.fileno(), give_info.fileno()]
            command = command_line(self._limits, self._python, self._script, folder, *fds)
            check = trio.from_thread.check_cancelled
            try:
                return run_limited(command, code.encode(), folder.path, self._limits.watched(), check, fds)
            finally:
                give_info.close()
                _wait_gone(info.read())


@contextmanager
def _pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb") as writer:
        yield reader, writer


def _wait_gone(info: bytes) -> None:
    """Wait until the sandbox's processes have ended; `info` is what bubblewrap told of it. They have been killed.

    The kernel ends them when bubblewrap ends, but a moment later, in which they could still write.
    """
    if not info:
        return  # it never began
    with suppress(ProcessLookupError):
        init = os.pidfd_open(int(msgspec.json.decode(info)["child-pid"]))
        try:
            poll = select.poll()
            poll.register(init, select.POLLIN)
            poll.poll(_GONE_S * 1000)
        finally:
            os.close(init)


def command_line(
    limits: SandboxLimits, python: str, script: str, folder: Folder, seccomp_fd: int, info_fd: int
) -> list[str]:
    """What runs `script` with `python` in the sandbox."""
    return [
        *("nice", "-n", "10", "choom", "-n", "1000", "--"),
        *_as_user(folder.uid),
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)),
        *_system(),
        *_around(python),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_SCRATCH_BYTES), "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev", "--size", str(_SCRATCH_BYTES), "--tmpfs", "/tmp"),
        *("--bind", str(folder.path), _DATA, "--remount-ro", "/", "--chdir", _DATA),
        *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", _DATA),
        *("--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *("--setenv", "OPENBLAS_NUM_THREADS", "2", "--setenv", "OMP_NUM_THREADS", "2"),  # stacks count as memory
        # Inside, where the namespace's processes are counted alone; the user may have many others.
        *("prlimit", f"--nproc={limits.max_processes}", f"--as={limits.max_memory_bytes}"),
        *(f"--cpu={int(limits.timeout_s) + 1}", f"--fsize={limits.max_disk_bytes}"),
        *(f"--nofile={_MAX_OPEN_FILES}", "--core=0", "--"),
        *(python, "-u", "-c", script),
    ]


def sandbox_limits(settings: Settings) -> SandboxLimits:
    """The limits that the settings ask for."""
    return SandboxLimits(
        timeout_s=settings.code_timeout_s,
        max_output_bytes=settings.max_code_output_bytes,
        max_memory_bytes=settings.max_code_memory_bytes,
        max_disk_bytes=settings.max_code_disk_bytes,
        max_files=settings.max_code_files,
        max_processes=settings.max_code_processes,
    )


def make_folder(parent: Path) -> Folder:
    """A new, empty one. As root, of a user id that nobody else has."""
    is_root = os.geteuid() == 0
    uid = _FIRST_UID + secrets.randbelow(1 << 28) if is_root else os.geteuid()
    path = parent / secrets.token_hex(16)
    path.mkdir(mode=0o700)
    if is_root:
        os.chown(path, uid, uid)
    return Folder(path, uid)


def remove_folder(folder: Folder) -> None:
    """Delete it with all that is in it, however deep that is. Follows no links; what cannot be deleted stays."""
    for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):
        subprocess.run([*command, "--", folder.path], stderr=subprocess.DEVNULL, check=False)


def _as_user(uid: int) -> Sequence[str]:
    if uid == os.geteuid():
        return ()
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--")


def _system() -> list[str]:
    """/usr, and what leads there or stands beside it."""
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            mounts += ["--ro-bind", name, name]
    return mounts


def _around(python: str) -> list[str]:
    """What an interpreter outside /usr needs: its own tree, and the one that a virtual environment is made from."""
    trees = {Path(python).parent.parent, Path(python).resolve().parent.parent}
    return [
        part for tree in sorted(trees) if not tree.is_relative_to("/usr") for part in ("--ro-bind", *[str(tree)] * 2)
    ]


def _machines_python() -> str:
    """The machine's interpreter, or else the one that this server's is made from."""
    own = Path(sys.executable).resolve()
    if own.is_relative_to("/usr"):
        return str(own)
    return shutil.which("python3", path="/usr/local/bin:/usr/bin") or str(own)


def sentence(outcome: Outcome, limits: SandboxLimits) -> str | None:
    """What a limit did, for the model; None when the program came to its own end without an error."""
    match outcome.end:
        case End.EXITED:
            return None if outcome.status == 0 else f"The program ended with exit status {outcome.status}."
        case End.TOO_SLOW:
            return f"The program was stopped: it ran longer than {limits.timeout_s:g} s."
        case End.TOO_TALKATIVE:
            return f"The program was stopped: it wrote more than {limits.max_output_bytes} bytes of output."
        case End.TOO_BIG:
            return f"The program was stopped: it used more than {limits.max_memory_bytes} bytes of memory."
        case End.TOO_FULL:
            return (
                f"The program was stopped: its files are more than {limits.max_disk_bytes} bytes "
                f"or {limits.max_files} in number."
            )
