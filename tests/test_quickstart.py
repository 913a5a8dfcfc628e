"""The README's first command as it stands: the default model, two tools, one run, shown as a timeline."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.model


def test_the_quickstart_runs_and_shows_calls_and_reuse() -> None:
    done = subprocess.run(["demos/quickstart.sh"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "longloop listens on ws://127.0.0.1:" in done.stdout
    assert "→ " in done.stdout  # a tool ran
    assert "reused" in done.stdout
    assert "■ completed" in done.stdout


def test_a_missing_python_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "demos").mkdir()
    for name in ("quickstart.sh", "setup.sh"):
        (tmp_path / "demos" / name).write_text((ROOT / "demos" / name).read_text())
    (tmp_path / "bin").mkdir()
    for tool in ("dirname", "cksum", "cat"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    done = subprocess.run(
        ["/bin/bash", "demos/quickstart.sh"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "longloop: Python 3.11 or newer is needed and was not found; set PYTHON to its path."
