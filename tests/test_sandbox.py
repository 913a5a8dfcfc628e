"""hosted/sandbox.py, seccomp.py, cell.py and containers.py: what code in the sandbox can do, and what it cannot.

Each attack ends in a sentence for the model, within limits that the first test makes sure of.
"""

import ast
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from engine.hosted import sandbox as module
from engine.hosted.cell import run_cell
from engine.hosted.containers import Containers
from engine.hosted.limited import End
from engine.hosted.sandbox import (
    Sandbox,
    SandboxLimits,
    SandboxMissing,
    make_folder,
    remove_folder,
    sandbox_limits,
    sentence,
)
from engine.hosted.seccomp import seccomp_program
from engine.settings import Settings

LIMITS = SandboxLimits(
    timeout_s=20,
    max_output_bytes=20_000,
    max_memory_bytes=200 << 20,
    max_disk_bytes=4 << 20,
    max_files=100,
    max_processes=12,
)
QUICK = SandboxLimits(timeout_s=1, max_output_bytes=20_000, max_memory_bytes=200 << 20, max_processes=12)


@pytest.fixture
async def containers() -> AsyncIterator[Containers]:
    async with Containers.open(idle_s=100, max_containers=3) as containers:
        yield containers


async def run(
    containers: Containers, code: str, limits: SandboxLimits = LIMITS, container: str = ""
) -> tuple[str, str]:
    """Output and what went wrong."""
    with containers.use(container or await containers.new()) as folder:
        outcome = await Sandbox(limits).run(code, folder)
    return outcome.output.decode(), sentence(outcome, limits) or ""


@pytest.mark.sandbox
async def test_limits_hold_before_anything_attacks_them(containers: Containers) -> None:
    code = """
        import os, resource
        names = "NPROC AS CPU FSIZE NOFILE CORE".split()
        limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] for name in names}
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
        limits | {name: status[name] for name in ("Seccomp", "NoNewPrivs", "CapEff", "CapBnd")} | {"nice": os.nice(0)}
    """
    output, fault = await run(containers, "\n".join(line[8:] for line in code.splitlines()))
    assert fault == ""
    assert ast.literal_eval(output) == {
        "NPROC": 12, "AS": 200 << 20, "CPU": 21, "FSIZE": 4 << 20, "NOFILE": 128, "CORE": 0,
        "Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16,
        "nice": min(19, os.nice(0) + 10),
    }  # fmt: skip


@pytest.mark.sandbox
async def test_files_of_one_run_stay_and_are_seen_by_no_other(containers: Containers) -> None:
    first, second = await containers.new(), await containers.new()
    write = "open('a.txt', 'w').write('kept')\nimport os; os.getcwd()"
    assert await run(containers, write, container=first) == ("'/mnt/data'\n", "")
    assert await run(containers, "open('a.txt').read()", container=first) == ("'kept'\n", "")
    assert await run(containers, "import os; os.listdir('.')", container=second) == ("[]\n", "")


@pytest.mark.sandbox
async def test_the_machine_is_not_seen(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:  # P140
    monkeypatch.setenv("VERY_SECRET", "key")
    code = """
import os
print(sorted(set(os.listdir("/")) - {"lib32", "lib64", "libx32"}))
print(sorted(os.environ), len([name for name in os.listdir("/proc") if name.isdigit()]) < 5)
for path in ("/x", "/usr/x", "/dev/x", "/etc/passwd", "/root", "/home", "/sys"):
    try:
        open(path, "a")
    except OSError as error:
        continue
    print(path)
"""
    output, fault = await run(containers, code)
    root, environment = output.splitlines()
    assert fault == ""
    assert root == "['bin', 'dev', 'lib', 'mnt', 'proc', 'tmp', 'usr']"
    assert "VERY_SECRET" not in environment
    assert environment.endswith("True")


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import socket; socket.create_connection(('93.184.216.34', 80), 2)", "Network is unreachable"),
        ("import socket; socket.create_connection(('127.0.0.1', 8765), 2)", "refused"),
        ("import urllib.request; urllib.request.urlopen('http://example.org')", "name resolution"),
        ("import os\nwhile True: os.fork()", "Resource temporarily unavailable"),
        (
            "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[9], daemon=True).start()",
            "can't start",
        ),
        ("x = bytearray(10 << 30)", "MemoryError"),
        ("import os; os.memfd_create('x')", "Operation not permitted"),
        ("import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0", "AssertionError"),
        ("import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) >= 0", "AssertionError"),
        ("open('big', 'wb').write(bytes(9 << 20))", "File too large"),
        ("open('/tmp/big', 'wb').write(bytes(17 << 20))", "File too large"),
        ("[open(f'/dev/shm/{n}', 'wb').write(bytes(3 << 20)) for n in range(9)]", "No space left"),
        ("1 +", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(7)", ""),
    ],
)
async def test_an_attack_ends_as_an_exception_of_the_program(containers: Containers, code: str, why: str) -> None:
    output, fault = await run(containers, code)
    assert why in output
    assert fault == f"The program ended with exit status {7 if not why else 1}."


FORKS = "import os\nfor _ in range(6):\n    if os.fork() == 0: break\n"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("code", "limits", "why"),
    [
        ("while True: pass", QUICK, "longer than 1 s"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", QUICK, "longer than 1 s"),
        ("while True: print('x' * 999)", LIMITS, "more than 20000 bytes of output"),
        (FORKS + "x = b'x' * (60 << 20)\nimport time; time.sleep(60)", LIMITS, "bytes of memory"),
        (
            "import itertools\nfor n in itertools.count(): open(f'f{n}', 'wb').write(bytes(1 << 20))",
            LIMITS,
            "files are more",
        ),
        ("import itertools\nfor n in itertools.count(): open(f'f{n}', 'w')", LIMITS, "100 in number"),
    ],
)
async def test_an_attack_on_what_is_watched_is_stopped(  # P141
    containers: Containers, code: str, limits: SandboxLimits, why: str
) -> None:
    output, fault = await run(containers, code, limits)
    assert len(output) <= 20_000
    assert why in fault


@pytest.mark.sandbox
async def test_nothing_outlives_its_program(containers: Containers) -> None:
    """Neither a child that left its session nor one of a cancelled program writes on."""
    touch = "import os, time, itertools\nif os.fork() == 0:\n    os.setsid()\n"
    touch += "    for n in itertools.count(): open(f'f{n % 50}', 'w').write(str(n))\n"
    for ending in ("while not os.path.exists('f9'): pass", "while True: pass"):
        container = await containers.new()
        with containers.use(container) as folder, trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, containers, touch + ending, LIMITS, container)
                while not (folder.path / "f9").exists():  # noqa: ASYNC110 - the sandbox can set no event of ours
                    await trio.sleep(0.01)
                if ending == "while True: pass":
                    scope.cancel()
        before = {name: (folder.path / name).read_bytes() for name in os.listdir(folder.path)}
        assert before == {name: (folder.path / name).read_bytes() for name in os.listdir(folder.path)}
        assert "f9" in before


@pytest.mark.sandbox
async def test_killing_its_parents_gains_nothing(containers: Containers) -> None:
    assert await run(containers, "import os; os.kill(os.getppid(), 9)") == ("", "")
    assert "No such process" in (await run(containers, "import os; os.kill(-1, 9)"))[0]


@pytest.mark.sandbox
async def test_a_python_that_does_not_work_is_told(containers: Containers) -> None:
    with pytest.raises(SandboxMissing, match=r"cannot run /no/such/python3 .* No such file"):
        await Sandbox(LIMITS, python="/no/such/python3").try_out(containers.parent)
    await Sandbox(LIMITS).try_out(containers.parent)
    assert os.listdir(containers.parent) == []


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name, **options: None if name == "bwrap" else name)
    with pytest.raises(SandboxMissing, match=r"bwrap was not found.*apt install bubblewrap"):
        Sandbox(LIMITS)


def test_an_unknown_machine_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name, **options: name)
    monkeypatch.setattr(module.platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxMissing, match="no sandbox for riscv64 machines, only for x86_64 and aarch64"):
        Sandbox(LIMITS)


def test_limits_are_those_of_the_settings() -> None:
    settings = Settings(
        code_timeout_s=1, max_code_output_bytes=2, max_code_memory_bytes=3, max_code_disk_bytes=4, max_code_files=5,
        max_code_processes=6,
    )  # fmt: skip
    assert sandbox_limits(settings) == SandboxLimits(1, 2, 3, 4, 5, 6)


def verdict(program: bytes, number: int, arch: int, flags: int = 0) -> int:
    """What the kernel would make of a system call: the few instructions that a program has, carried out."""
    data = {0: number, 4: arch, 16: flags}
    steps = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            value = data[operand]
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += if_true if holds else if_false


@pytest.mark.parametrize(
    ("machine", "arch", "read", "unshare", "clone"),
    [("x86_64", 0xC000003E, 0, 272, 56), ("aarch64", 0xC00000B7, 63, 97, 220)],
)
def test_system_calls_are_refused_by_number(machine: str, arch: int, read: int, unshare: int, clone: int) -> None:
    program = seccomp_program(machine)
    allow, refuse, unknown = 0x7FFF0000, 0x00050001, 0x00050026
    assert verdict(program, read, arch) == allow
    assert verdict(program, read, 0x40000003) == refuse  # 32-bit x86
    assert verdict(program, read | 0x40000000, arch) == refuse
    assert verdict(program, unshare, arch) == refuse
    assert verdict(program, 435, arch) == unknown
    assert verdict(program, clone, arch, flags=0x3D0F00) == allow  # a thread
    assert verdict(program, clone, arch, flags=0x10000011) == refuse  # a user namespace


def test_a_cell_shows_its_last_expression(capsys: pytest.CaptureFixture[str]) -> None:
    run_cell("x = 6\nx * 7", {})
    run_cell("x = 1\nNone", {})
    run_cell("def f(): pass", {})
    run_cell("", {})
    assert capsys.readouterr().out == "42\n"


async def test_a_container_that_nothing_uses_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    async with Containers.open(idle_s=100, max_containers=3) as containers:
        first = await containers.new()
        await trio.sleep(99)
        with containers.use(first) as folder:
            await trio.sleep(500)
            await containers.new()
            assert folder.path.is_dir()
        await trio.sleep(99)
        assert first in containers
        await trio.sleep(2)
        assert first not in containers
        with pytest.raises(KeyError), containers.use(first):
            pass
        assert "cntr_unknown" not in containers
        await containers.new()
        assert not folder.path.exists()


async def test_the_longest_unused_container_makes_room() -> None:
    async with Containers.open(idle_s=100, max_containers=3) as containers:
        ids = [await containers.new() for _ in range(3)]
        with containers.use(ids[0]):
            pass
        newest = await containers.new()
        assert [id_ in containers for id_ in [*ids, newest]] == [True, False, True, True]
        parent = containers.parent
    assert not Path(parent).exists()


async def test_a_container_goes_however_deep_it_is() -> None:
    async with Containers.open(idle_s=100, max_containers=3) as containers:
        parent = containers.parent
        with containers.use(await containers.new()) as folder:
            _dig(folder.path, 3_000)
        removed = make_folder(parent)
        _dig(removed.path, 3_000)
        remove_folder(removed)
        assert os.listdir(parent) == [folder.path.name]
    assert not parent.exists()


def _dig(place: Path, depth: int) -> None:
    """Folders in folders, the last of which may not be entered."""
    fd = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.mkdir("closed", mode=0, dir_fd=fd)
    os.close(fd)


def test_the_end_of_a_program_that_went_well_needs_no_sentence() -> None:
    assert sentence(module.Outcome(End.EXITED, 0, b""), LIMITS) is None
