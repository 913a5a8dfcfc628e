"""Really running the agent's commands, once, in a copy of the small repository."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine.compare.work import ToolRun

_PYTEST: Final = (sys.executable, "-m", "pytest")
_MAX_CHARS: Final = 10_000  # what the tool's description promises
_TIMEOUT_S: Final = 60


class CannotRun(Exception):
    """A command of the work cannot be run here; the message says what is missing."""


def run_commands(repository: Path, commands: Iterable[str], report: Callable[[str], None]) -> dict[str, ToolRun]:
    """What each command prints and how long it takes. Calls `report` with each before it runs. Raises CannotRun."""
    _check_programs()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "measures"
        shutil.copytree(repository, copy, ignore=shutil.ignore_patterns("__pycache__"))
        _run(copy, "pytest")  # not counted: Python compiles what it imports for the first time
        runs = {}
        for command in commands:
            report(command)
            runs[command] = _run(copy, command)
    return runs


def _check_programs() -> None:
    if missing := [name for name in ("grep", "cat") if shutil.which(name) is None]:
        raise CannotRun(f"The agent's commands need {' and '.join(missing)}.")
    if find_spec("pytest") is None:
        raise CannotRun("The agent's commands need pytest: pip install 'longloop[compare]'.")


def _run(folder: Path, command: str) -> ToolRun:
    program, *arguments = shlex.split(command)
    assert program in ("grep", "cat", "pytest"), command
    # Plugins that happen to be installed would stand in the output.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "LC_ALL": "C.UTF-8"}
    start = time.perf_counter()
    done = subprocess.run(
        [*(_PYTEST if program == "pytest" else (program,)), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    seconds = time.perf_counter() - start
    return ToolRun(_shown(done), round(seconds, 4))


def _shown(done: subprocess.CompletedProcess[str]) -> str:
    text = done.stdout + done.stderr
    if len(text) > _MAX_CHARS:
        half = _MAX_CHARS // 2
        text = f"{text[:half]}\n[{len(text) - _MAX_CHARS} characters left out]\n{text[-half:]}"
    return text + (f"[exit code {done.returncode}]\n" if done.returncode else "")
