"""OpenAI's own clients, unmodified, in the loops of demos/: three rounds of tools, four calls, over each transport."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.peers.npm import ROOT, installed_file, node
from tests.peers.played import open_recorded
from tests.peers.recorder import Recorder

pytestmark = pytest.mark.peer

# A turn of an agent over each transport.
TURNS: Final = {"http": ["POST /v1/responses", "200"], "websocket": ["response.create", "response.completed"]}
ROUNDS: Final = ROOT / "tests/peers/three_rounds.yaml"


async def play(recorder: Recorder, demo: str, *flags: str) -> None:
    """Run a demo against the recorder. It fails by itself unless its answer quotes every output."""
    await finish([sys.executable, str(ROOT / "demos" / demo), "--url", recorder.url, *flags])


async def play_js(recorder: Recorder, folder: Path, demo: str, *flags: str) -> None:
    """The same for a demo in JavaScript, which finds its packages beside itself."""
    (folder / "node_modules").symlink_to(await trio.to_thread.run_sync(node_modules))
    for name in (demo, "common.mjs"):
        shutil.copy(ROOT / "demos" / name, folder)
    await finish([str(node()), str(folder / demo), "--url", recorder.url, *flags])


async def finish(command: list[str]) -> None:
    """Run a command that must succeed."""
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def node_modules() -> Path:
    """OpenAI's Agents SDK for JavaScript, which brings their client, ws and zod along."""
    return installed_file("@openai/agents@0.20.0", "node_modules/@openai/agents").parents[1]


def check_types(recorder: Recorder, union: Any = None) -> None:
    """Every event, and every whole response, must be what the SDK's types say, read as strict JSON."""
    # Not at the top: without the package nothing here is selected, but it is still collected.
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter = TypeAdapter(union or Response | ResponseStreamEvent)
    answers = [frame for frame in recorder.received() if frame.body.get("object") != "list"]  # of GET /v1/models
    assert answers
    for frame in answers:
        adapter.validate_json(json.dumps(frame.body), strict=True)


def new_items(frame: Any) -> list[str]:
    """What kinds of items a create brings."""
    return [item.get("type", "message") for item in frame.body["input"]]


async def test_openai_python_goes_on_from_response_to_response_over_one_socket(tmp_path: Path):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play(recorder, "openai_chain.py")
    assert recorder.outline() == ["response.create", "response.completed"] * 5
    assert [new_items(frame) for frame in recorder.sent()] == [
        [],
        ["message"],
        ["function_call_output"] * 2,
        ["function_call_output"],
        ["function_call_output"],
    ]
    assert len({frame.socket for frame in recorder.frames}) == 1
    check_types(recorder)


async def test_openai_pythons_beta_injects_into_one_response(tmp_path: Path):
    from openai.types.beta import BetaResponseInjectCreatedEvent, BetaResponseStreamEvent  # as above

    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play(recorder, "openai_inject.py")
    assert recorder.outline() == ["response.create", *["response.inject"] * 4, "response.completed"]
    numbers = [frame.body["sequence_number"] for frame in recorder.received()]
    assert numbers == list(range(len(numbers)))
    check_types(recorder, BetaResponseStreamEvent | BetaResponseInjectCreatedEvent)


@pytest.mark.parametrize("history", ["sent"])
@pytest.mark.parametrize("how", ["whole", "streamed"])
async def test_openai_python_runs_over_http(tmp_path: Path, how: str, history: str):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play(recorder, "openai_http.py", "--how", how, "--history", history)
    end = {"whole": "200", "streamed": "response.completed"}[how]
    assert recorder.outline() == ["GET /v1/models", "200", *["POST /v1/responses", end] * 4]
    num_items = {"sent": [1, 6, 9, 11]}[history]
    assert [len(frame.body["input"]) for frame in recorder.sent("POST /v1/responses")] == num_items
    check_types(recorder)


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_the_agents_sdk_runs_to_its_final_output(tmp_path: Path, transport: str):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play(recorder, "agents_python.py", "--over", transport)
    assert recorder.outline() == ["GET /v1/models", "200", *TURNS[transport] * 4]
    num_items = {"http": [1, 6, 9, 11], "websocket": [1, 2, 1, 1]}[transport]
    assert [len(frame.body["input"]) for frame in recorder.sent()[1:]] == num_items
    check_types(recorder)


async def test_the_agents_sdks_hosted_model_injects_into_one_response(tmp_path: Path):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play(recorder, "agents_python.py", "--over", "inject")
    assert recorder.outline()[2:] == ["response.create", *["response.inject"] * 4, "response.completed"]
    assert recorder.sent("response.create")[0].body["multi_agent"] == {"enabled": True}


async def test_openai_js_goes_on_from_response_to_response_over_one_socket(tmp_path: Path):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play_js(recorder, tmp_path, "openai_js.mjs")
    assert recorder.outline() == ["response.create", "response.completed"] * 4
    assert [len(frame.body["input"]) for frame in recorder.sent()] == [1, 2, 1, 1]
    check_types(recorder)


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_the_agents_sdk_for_js_runs_to_its_final_output(tmp_path: Path, transport: str):
    async with open_recorded(ROUNDS, tmp_path) as recorder:
        await play_js(recorder, tmp_path, "agents_js.mjs", "--over", transport)
    assert recorder.outline() == ["GET /v1/models", "200", *TURNS[transport] * 4]
    check_types(recorder)
