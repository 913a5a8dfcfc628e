"""The client and the server together, over connections that break after any number of frames."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio_websocket import wrap_client_stream

from engine.client import ConnectionLost, custom_tool, open_run
from engine.client_tools import ToolCall
from engine.client_wire import WebSocketFrames
from engine.hosted.fake import FakeHost, Played
from tests.served import Served, open_served

SCENARIO = """
model: test
steps:
  - text: I look twice.
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - calls: [{name: look, arguments: {n: 3}}]
  - text: "Done with {last_output}."
"""
CHAT = """
model: test
steps:
  - text: "You said {last_user:20}."
"""


class Cut:
    """Connections to a served app; the first breaks after `num_frames` frames, counted in one direction."""

    def __init__(self, served: Served, num_frames: int, direction: str) -> None:
        self._served = served
        self._left = {direction: num_frames}

    @asynccontextmanager
    async def open(self) -> AsyncIterator["CutFrames"]:
        stream = self._served.stream()
        held: Exception | None = None
        async with trio.open_nursery() as nursery:
            websocket = await wrap_client_stream(nursery, stream, "localhost", "/v1/responses?lifecycle=append")
            try:
                yield CutFrames(websocket, self._left)
            except Exception as error:
                held = error
            await stream.aclose()
            nursery.cancel_scope.cancel()
        if held is not None:
            raise held


class CutFrames(WebSocketFrames):
    """A connection that uses up a budget of frames; a frame that is sent at the cut still arrives."""

    def __init__(self, websocket: Any, left: dict[str, int]) -> None:
        super().__init__(websocket)
        self._left = left

    async def send(self, text: str) -> None:
        await super().send(text)
        self._spend("send")

    async def receive(self) -> str:
        self._spend("recv")
        return await super().receive()

    def _spend(self, direction: str) -> None:
        if direction in self._left:
            self._left[direction] -= 1
            if self._left[direction] < 0:
                del self._left[direction]
                raise ConnectionLost("cut")


async def look(n: int) -> str:
    """Look at something."""
    return f"thing {n}"


@pytest.mark.parametrize(
    ("direction", "num_frames"), [("recv", n) for n in range(48)] + [("send", n) for n in range(4)]
)
async def test_run_over_a_broken_connection_is_the_same_run(autojump_clock, direction, num_frames):
    calls = []
    with trio.fail_after(60):
        async with (
            open_served(SCENARIO) as served,
            open_run(
                "ws://served",
                input="go",
                tools=[look],
                connector=Cut(served, num_frames, direction),
                on_tool_call=calls.append,
            ) as run,
        ):
            numbers = [event.sequence_number async for event in run]
            result = await run.result()
    assert result.text == "Done with thing 3."
    assert numbers == list(range(len(numbers)))
    assert len(calls) == 3
    assert [item.type for item in result.output].count("function_call") == 3


HOSTED = """
model: test
steps:
  - calls: [{name: find}, {name: look, arguments: {n: 1}}, {name: pay}]
  - text: "{outputs}"
"""


@pytest.mark.parametrize(
    ("direction", "num_frames"), [("recv", n) for n in range(2, 30, 2)] + [("send", n) for n in range(1, 4)]
)
async def test_hosted_calls_run_once_however_often_the_connection_breaks(autojump_clock, direction, num_frames):
    played = {"find": Played(output="found", takes_s=0.2), "pay": Played(output="paid", takes_s=0.2)}
    host = FakeHost(played, needs_approval=["pay"])

    async def approve(call: ToolCall) -> bool:
        await trio.sleep(0.1)
        return call.name == "pay"

    with trio.fail_after(60):
        async with (
            open_served(HOSTED, hosts={"mcp": host}, tools=["fake"]) as served,
            open_run(
                "ws://served",
                input="go",
                tools=[look, {"type": "mcp", "server_label": "fake"}],
                approve=approve,
                connector=Cut(served, num_frames, direction),
            ) as run,
        ):
            numbers = [event.sequence_number async for event in run]
            result = await run.result()
    assert result.text == "found\nthing 1\npaid"
    assert numbers == list(range(len(numbers)))
    assert sorted(call.tool.name for call in host.calls) == ["find", "pay"]


async def test_early_cancel_reaches_the_server(autojump_clock):
    with trio.fail_after(60):
        async with (
            open_served(SCENARIO) as served,
            open_run("ws://served", input="go", tools=[look], connector=Cut(served, 999, "recv")) as run,
        ):
            await anext(run)
            run.cancel()
            result = await run.result()
    assert (result.status, result.reason) == ("incomplete", "cancelled")


async def test_streamed_output_is_put_together_by_the_server(autojump_clock):
    async def count(n: int) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word
            await trio.sleep(0.2)

    scenario = SCENARIO.replace("look", "count")
    for cut in range(14, 34):
        with trio.fail_after(60):
            async with (
                open_served(scenario) as served,
                open_run("ws://served", input="go", tools=[count], connector=Cut(served, cut, "recv")) as run,
            ):
                result = await run.result()
        assert result.text == "Done with one two three."


async def test_kept_open_run_takes_messages(autojump_clock):
    with trio.fail_after(60):
        async with (
            open_served(CHAT) as served,
            open_run("ws://served", input="one", keep_open=True, connector=Cut(served, 999, "recv")) as run,
        ):
            assert (await run.result()).text == "You said one."
            await run.send("two")
            result = await run.result()
    assert result.status == "in_progress"


async def test_custom_tool_gets_the_scripts_text():
    @custom_tool(regex="[a-z ]+")
    def shout(text: str) -> str:
        """Say it loud."""
        return text.upper()

    scenario = 'model: t\nsteps: [{call: {name: shout, input: "hello {last_user}"}}, {text: "{last_output}"}]\n'
    async with (
        open_served(scenario) as served,
        open_run("ws://served", input="you", tools=[shout], connector=Cut(served, 10**6, "send")) as run,
    ):
        result = await run.result()
    assert result.text == "HELLO YOU"
    assert [item.type for item in result.output] == ["custom_tool_call", "message"]
