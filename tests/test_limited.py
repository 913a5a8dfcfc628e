"""hosted/limited.py: commands that end at a limit. What only a sandbox can do is in test_sandbox.py."""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.hosted.limited import End, Limits, Outcome, exceeds, resident_bytes, run_limited

WIDE = Limits(timeout_s=20, max_output_bytes=1 << 20, max_memory_bytes=1 << 30, max_disk_bytes=1 << 30, max_files=99)


def nothing() -> None:
    """Lets the command go on."""


def python(
    code: str, folder: Path, stdin: bytes = b"", check: Callable[[], None] = nothing, **limits: float
) -> Outcome:
    watched = Limits(**{name: limits.get(name, getattr(WIDE, name)) for name in WIDE.__struct_fields__})
    return run_limited([sys.executable, "-I", "-u", "-c", code], stdin, folder, watched, check)


def test_output_of_both_streams_and_the_exit_status_are_told(tmp_path: Path) -> None:
    outcome = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", tmp_path)
    assert outcome == Outcome(End.EXITED, 3, b"out\nerr\n")


def test_input_larger_than_a_pipe_arrives_while_output_is_read(tmp_path: Path) -> None:
    text = b"x" * 900_000
    echo = "import sys\nwhile piece := sys.stdin.buffer.read1(): sys.stdout.buffer.write(piece)"
    assert python(echo, tmp_path, text) == Outcome(End.EXITED, 0, text)


def test_input_that_nobody_reads_does_no_harm(tmp_path: Path) -> None:
    assert python("pass", tmp_path, b"x" * 900_000).end is End.EXITED


@pytest.mark.parametrize(
    ("code", "limits", "end"),
    [
        ("import time; print('a'); time.sleep(60)", {"timeout_s": 0.3}, End.TOO_SLOW),
        ("while True: print('a' * 99)", {"max_output_bytes": 5000}, End.TOO_TALKATIVE),
        ("import time; a = b'a' * (100 << 20); time.sleep(60)", {"max_memory_bytes": 60 << 20}, End.TOO_BIG),
        (
            "import os, time\nfor _ in range(4): os.fork() or [b'a' * (20 << 20), time.sleep(60)]\ntime.sleep(60)",
            {"max_memory_bytes": 60 << 20},
            End.TOO_BIG,
        ),
        ("import time; open('a', 'wb').write(bytes(1 << 20)); time.sleep(60)", {"max_disk_bytes": 9999}, End.TOO_FULL),
        ("import time\nfor n in range(20): open(str(n), 'w')\ntime.sleep(60)", {"max_files": 19}, End.TOO_FULL),
        (
            "import os, time\nf = open('a', 'wb')\nos.unlink('a')\nf.write(bytes(1 << 20))\nf.flush()\ntime.sleep(60)",
            {"max_disk_bytes": 9999},
            End.TOO_FULL,
        ),
        (
            "import os, time\nfor _ in range(17): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
            "open('a', 'wb').write(bytes(1 << 20))\ntime.sleep(60)",
            {"max_disk_bytes": 500_000},
            End.TOO_FULL,
        ),
    ],
)
def test_a_limit_ends_the_command(
    code: str, limits: dict[str, float], end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = python(code, tmp_path, **limits)
    assert outcome.end is end
    assert len(outcome.output) <= limits.get("max_output_bytes", 99)


def test_what_the_check_raises_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "running").unlink(missing_ok=True)

    def check() -> None:
        if (tmp_path / "running").exists():
            raise KeyError("enough")

    code = f"import pathlib, time; pathlib.Path({str(tmp_path)!r}, 'running').touch(); time.sleep(60)"
    with pytest.raises(KeyError, match="enough"):
        python(code, tmp_path, check=check)


def test_memory_of_this_process_is_that_of_the_kernel() -> None:
    assert 10 << 20 < resident_bytes(os.getpid()) < 4 << 30
    assert resident_bytes(2**22 + 1) == 0  # beyond the highest number of a process


def test_descriptors_beyond_those_of_select_do(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1100:
        pytest.skip("this machine allows fewer descriptors than that")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1040)]
    try:
        assert python("print(input())", tmp_path, b"in").output == b"in\n"
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(bytes(100_000))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "in")
    assert exceeds(tmp_path, 50_000, 99)
    assert not exceeds(tmp_path / "out", 50_000, 99)
    assert exceeds(tmp_path / "out", 50_000, 0)
    assert not exceeds(tmp_path / "nowhere", 1, 1)
