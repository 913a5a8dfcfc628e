"""Hosted calls in a real rendering: the same ids whether a run is one response or several."""

from pathlib import Path
from typing import Any

import pytest

from engine.commands.backend import choose_backend
from engine.hosted.fake import FakeHost, Played
from engine.settings import Settings
from tests.served import FUNCTION, open_served, pending

pytestmark = pytest.mark.model

SCENARIO = """
model: test
steps:
  - calls: [{name: find, arguments: {n: 1}}, {name: pay, arguments: {n: 2}}]
  - text: "{outputs}"
"""


async def _ids(scenario: Path, lifecycle: str) -> list[int]:
    """The token log of a run in which a hosted call runs at once and another one when it is approved."""
    settings: dict[str, Any] = {"tools": ["fake"], "lifecycle": lifecycle}
    host = FakeHost({"find": Played(output="found"), "pay": Played(output="paid")}, needs_approval=["pay"])
    chosen = Settings(backend=f"script:{scenario}", tokenizer="default", **settings)
    asked: dict[str, Any] = {"tools": [{"type": "mcp", "server_label": "fake"}], "include": ["response.tokens"]}
    async with (
        choose_backend(chosen, lambda what, fraction: None) as backend,
        open_served(backend=backend, hosts={"mcp": host}, **settings) as served,
        served.connect() as client,
    ):
        await backend.wait_ready()
        await client.create(**asked)
        frames = await client.step()
        (request,) = [frame["item"]["id"] for frame in frames if _is_request(frame)]
        answer = {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}
        if lifecycle == "append":
            await client.send("response.append", input=[answer])
        else:
            await client.create(**asked, previous_response_id=frames[0]["response"]["id"], input=[answer])
        frames += await client.step()
    assert frames[-1]["response"]["output"][-1]["content"][0]["text"] == "found\npaid"
    return _ids_in(frames)


def _ids_in(frames: list[dict[str, Any]]) -> list[int]:
    spans = [span for frame in frames if frame["type"] == "response.tokens" for span in frame["spans"]]
    return [one for span in spans for one in span["ids"]]


def _is_request(frame: dict[str, Any]) -> bool:
    return frame["type"] == "response.output_item.done" and frame["item"]["type"] == "mcp_approval_request"


async def test_chain_and_append_give_the_model_the_same_tokens(tmp_path: Path) -> None:  # P125, P127
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO)
    assert await _ids(scenario, "append") == await _ids(scenario, "chain")


BESIDE = """
model: test
steps:
  - calls: [{name: find, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - text: "{outputs}"
"""


async def test_a_history_without_its_hosted_call_gives_the_same_tokens(tmp_path: Path) -> None:  # P131
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(BESIDE)
    chosen = Settings(backend=f"script:{scenario}", tokenizer="default", tools=["fake"])
    hosts = {"mcp": FakeHost({"find": Played(output="found")})}
    tools = [FUNCTION, {"type": "mcp", "server_label": "fake"}]
    asked: dict[str, Any] = {"tools": tools, "include": ["response.tokens"]}
    async with (
        choose_backend(chosen, lambda what, fraction: None) as backend,
        open_served(backend=backend, hosts=hosts, tools=["fake"]) as served,
    ):
        await backend.wait_ready()
        ids = []
        for is_anew in (False, True):
            async with served.connect() as client:
                await client.create(**asked)
                frames = await client.step()
                (key,) = pending(frames)
                answer = {"type": "function_call_output", "call_id": key, "output": "a window"}
                if is_anew:
                    made = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
                    own = [item for item in made if item["type"] == "function_call"]
                    await client.create(**asked, input=[{"role": "user", "content": "go"}, *own, answer])
                    frames = await client.step()
                else:
                    await client.send("response.append", input=[answer])
                    frames += await client.step()
                ids.append(_ids_in(frames))
    assert ids[0] == ids[1]
