"""What the README tells users of other clients to type, typed."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from tests.peers.codex import Codex
from tests.peers.npm import ROOT, codex_binary
from tests.peers.played import open_recorded
from tests.peers.readme import at, block, section

WHOLE, STREAMED, SOCKET = block("From other clients", "sh").splitlines()
SANDBOXLESS = 'sandbox_mode = "danger-full-access"\n'
CODEX = [line for line in block("Codex", "sh").splitlines() if line.startswith("npx")]


def test_every_demo_of_a_client_is_named_and_every_named_file_is_there():
    named = set(re.findall(r"`((?:demos|tests)/[\w.]+)`", section("From other clients")))
    assert all((ROOT / name).is_file() for name in named)
    ours = {"common", "tools", "auto_threshold", "many_runs"}
    demos = {path for kind in ("*.py", "*.mjs") for path in (ROOT / "demos").glob(kind) if path.stem not in ours}
    assert {f"demos/{path.name}" for path in demos} <= named


@pytest.mark.peer
@pytest.mark.parametrize(
    ("line", "outline"),
    [
        (WHOLE, ["POST /v1/responses", "200"]),
        (STREAMED, ["POST /v1/responses", "response.completed"]),
        (SOCKET, ["response.create", "response.completed"]),
    ],
)
async def test_a_line_for_the_shell_is_answered(tmp_path: Path, line: str, outline: list[str]):
    if line.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("needs curl")
    scenario = 'model: t\nsteps: [{text: "You said {last_user}."}]'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as in the README's .venv
    async with open_recorded(scenario, tmp_path) as recorder:
        command = at(line, urlsplit(recorder.url).port or 0)
        done = await trio.run_process(command, shell=True, capture_stdout=True, env=os.environ | {"PATH": path})
    assert "You said hello." in done.stdout.decode()
    assert recorder.outline() == outline


@pytest.mark.peer
@pytest.mark.parametrize("line", CODEX)
async def test_the_shipped_demo_plays_in_codex(tmp_path: Path, line: str):
    *_npx, package, command, flag, prompt = shlex.split(line)
    version = package.removeprefix("@openai/codex@")
    assert (command, flag) == ("exec", "--skip-git-repo-check")
    async with open_recorded(ROOT / "engine/scenarios/demo.yaml", tmp_path, keep_open=True) as recorder:
        # Whether Codex's own sandbox works on this machine, which it builds from the bubblewrap that ours needs, is not
        # the question here: in a virtual machine or a container it often does not.
        config = SANDBOXLESS + at(block("Codex", "toml"), urlsplit(recorder.url).port or 0)
        binary = await trio.to_thread.run_sync(codex_binary, version)
        result = await Codex(binary, tmp_path / "codex", config).exec(prompt)
    assert result.final_text.endswith("This answer was scripted, not inferred.")
    commands = " ".join(item["command"] for item in result.items("command_execution"))
    assert "echo hello from step 1" in commands and "uname -s" in commands  # side by side, so in any order
    appends = ["response.create", *["response.done", "response.append"] * 2, "response.done"]
    assert recorder.outline() == (appends if version == "0.107.0" else ["response.create", "response.completed"] * 3)
