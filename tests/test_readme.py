"""What the README tells users of other clients to type, typed."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from engine.backends.scenario import parse_scenario
from engine.hosted.functions import load_modules
from engine.settings import load
from tests.peers.codex import Codex
from tests.peers.npm import ROOT, codex_binary
from tests.peers.played import open_recorded
from tests.peers.readme import README, at, block, blocks, section

WHOLE, STREAMED, SOCKET = block("From other clients", "sh").splitlines()
SANDBOXLESS = 'sandbox_mode = "danger-full-access"\n'
RUN, CUSTOM_TOOL, LANES = blocks("From Python", "python")
CODEX = [line for line in block("Codex", "sh").splitlines() if line.startswith("npx")]
WARM = """
model: test
steps:
  - cases:
      - when: {tool_offered: get_temperature}
        steps: [{call: {name: get_temperature, arguments: {city: Oslo}}}, {text: "It is {last_output}."}]
      - steps: [{text: "You said {last_user}"}]
"""


def test_every_demo_of_a_client_is_named_and_every_named_file_is_there():
    named = set(re.findall(r"`((?:demos|tests)/[\w.]+)`", section("From other clients")))
    assert all((ROOT / name).is_file() for name in named)
    ours = {"common", "tools", "auto_threshold", "many_runs"}
    demos = {path for kind in ("*.py", "*.mjs") for path in (ROOT / "demos").glob(kind) if path.stem not in ours}
    assert {f"demos/{path.name}" for path in demos} <= named


def test_the_contents_lead_to_sections():
    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"\n##+ (.*)", README)}
    links = re.findall(r"\]\(#(.*?)\)", README)
    assert len(links) > 10
    assert set(links) <= headings


@pytest.mark.parametrize(("snippet", "said"), [(RUN, ["21.5 °C"]), (LANES, ["a fjord.", "a river."])])
async def test_a_program_is_answered(tmp_path: Path, snippet: str, said: list[str]) -> None:
    async with open_recorded(WARM, tmp_path) as recorder:
        program = at(snippet, urlsplit(recorder.url).port or 0)
        done = await trio.run_process([sys.executable, "-c", program], cwd=ROOT, capture_stdout=True)
    *_, last = done.stdout.decode().splitlines()
    assert all(words in last for words in said)


def test_a_custom_tool_says_its_grammar() -> None:
    names: dict[str, Any] = {}
    exec(CUSTOM_TOOL, names)
    assert names["query"].definition["format"] == {
        "type": "grammar",
        "syntax": "regex",
        "definition": "SELECT [^;]+;",
    }


def test_the_servers_functions_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "company.py"
    file.write_text(block("Tools that the server runs", "python"), "utf-8")
    assert [tool.name for tool in load_modules([str(file)])["company"]] == ["stock", "reserve"]


def test_the_scenario_is_one() -> None:
    assert parse_scenario(block("Scenarios", "yaml")).model == "script:weather"


def test_the_models_are_read(tmp_path: Path) -> None:
    file = tmp_path / "longloop.toml"
    file.write_text(block("Configuration", "toml"), "utf-8")
    assert list(load(file).models) == ["small", "demo"]


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
