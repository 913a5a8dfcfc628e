"""Lanes: several runs over one connection, whatever becomes of it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio_websocket import wrap_client_stream

from engine.client import ConnectionLost, open_run
from engine.client_lanes import Lanes, open_lanes
from engine.client_wire import Connection, NoServer, WebSocketFrames
from tests.served import TWO_CALLS, Served, open_served

ECHO = 'model: t\nsteps: [{text: "{last_user}"}]\n'


async def look(n: int) -> str:
    """Look."""
    await trio.sleep(0.1)
    return f"thing {n}"


class Dial:
    """Connects to a served app, and counts. `lives`: how many frames each connection carries before it breaks."""

    def __init__(self, served: Served, lives: Sequence[int] = ()) -> None:
        self.num_connections = 0
        self.sent: list[dict[str, Any]] = []
        self._served = served
        self._lives = iter(lives)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Connection]:
        self.num_connections += 1
        stream = self._served.stream()
        held: Exception | None = None
        async with trio.open_nursery() as nursery:
            websocket = await wrap_client_stream(nursery, stream, "localhost", "/v1/responses?lifecycle=append")
            try:
                yield Mortal(websocket, next(self._lives, 10**9), self.sent)
            except Exception as error:
                held = error
            await stream.aclose()
            nursery.cancel_scope.cancel()
        if held is not None:
            raise held


class Mortal(WebSocketFrames):
    """A connection that breaks when it has received so many frames."""

    def __init__(self, websocket: Any, life: int, sent: list[dict[str, Any]]) -> None:
        super().__init__(websocket)
        self._life = life
        self._sent = sent

    async def send(self, text: str) -> None:
        self._sent.append(json.loads(text))
        await super().send(text)

    async def receive(self) -> str:
        self._life -= 1
        if self._life < 0:
            raise ConnectionLost("cut")
        return await super().receive()


@asynccontextmanager
async def opened(scenario: str, *lives: int) -> AsyncIterator[tuple[Lanes, Dial]]:
    """Lanes on a server that plays `scenario`, within a minute of (virtual) time."""
    with trio.fail_after(60):
        async with open_served(scenario) as served:
            dial = Dial(served, lives)
            async with open_lanes("ws://x", connector=dial) as lanes:
                yield lanes, dial


async def test_runs_share_one_connection_and_see_their_own_events_only(autojump_clock):
    async with (
        opened(TWO_CALLS) as (lanes, dial),
        lanes.open_run("a", input="go", tools=[look]) as a,
        lanes.open_run("b", input="go", tools=[look]) as b,
    ):
        for run, name in ((a, "a"), (b, "b")):
            events = [event async for event in run]
            assert {event.stream_id for event in events} == {name}
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert (await run.result()).text == "Done with thing 2."
    assert dial.num_connections == 1
    assert {frame["stream_id"] for frame in dial.sent} == {"a", "b"}


@pytest.mark.parametrize("cut", range(0, 60, 4))
async def test_every_run_survives_a_connection_that_breaks(autojump_clock, cut):
    calls: list[str] = []
    texts: dict[str, str] = {}

    async def one(name: str) -> None:
        tool = {"on_tool_call": lambda call: calls.append(call.key)}
        async with lanes.open_run(name, input="go", tools=[look], **tool) as run:
            texts[name] = (await run.result()).text

    async with opened(TWO_CALLS, cut, cut + 5) as (lanes, dial), trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(one, name)
    assert texts == dict.fromkeys("abc", "Done with thing 2.")
    assert len(calls) == len(set(calls)) == 6
    assert dial.num_connections >= 2


async def test_lane_has_one_run_at_a_time_and_then_another(autojump_clock):
    async with opened(ECHO) as (lanes, dial):
        async with lanes.open_run("a", input="one") as run:
            with pytest.raises(ValueError, match="lane a has a run"):
                async with lanes.open_run("a", input="two"):
                    raise AssertionError
            assert (await run.result()).text == "one"
        async with lanes.open_run("a", input="two") as run:
            assert (await run.result()).text == "two"
    assert dial.num_connections == 1


async def test_run_that_is_left_is_cancelled_and_the_others_go_on(autojump_clock):
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]  # nobody answers its calls
    async with opened(TWO_CALLS) as (lanes, dial), lanes.open_run("b", input="go", tools=[look]) as other:
        async with lanes.open_run("a", input="go", tools=tools) as run:
            await anext(run)
        assert (await other.result()).text == "Done with thing 2."
    assert [frame["stream_id"] for frame in dial.sent if frame["type"] == "response.cancel"] == ["a"]


async def test_lane_that_nobody_reads_holds_up_no_other(autojump_clock, monkeypatch):
    monkeypatch.setattr("engine.client_driver.MAX_UNREAD_EVENTS", 3)
    words = "model: t\nsteps: [{text: {words: 5000}}]\n"
    async with (
        opened(words) as (lanes, _),
        lanes.open_run("a", input="go") as unread,
        lanes.open_run("b", input="go") as read,
    ):
        assert (await read.result()).status == "completed"
        assert (await unread.result()).status == "completed"


async def test_nobody_listens():
    with trio.fail_after(5), pytest.raises(NoServer):
        async with open_lanes("http://127.0.0.1:1") as lanes, lanes.open_run("a", input="go") as run:
            await run.result()


class Garbled:
    """The first connection brings a frame that is none, for everybody."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Connection]:
        async with self._dial.open() as connection:
            if self._dial.num_connections == 1:
                connection.receive = self._garble  # type: ignore[method-assign]
            yield connection

    async def _garble(self) -> str:
        await trio.sleep(1)
        return "no JSON"


async def test_connection_that_talks_nonsense_is_replaced_for_all(autojump_clock):
    async with (
        open_served(ECHO) as served,
        open_lanes("ws://x", connector=Garbled(dial := Dial(served))) as lanes,
        lanes.open_run("a", input="one") as a,
        lanes.open_run("b", input="two") as b,
    ):
        assert ((await a.result()).text, (await b.result()).text) == ("one", "two")
    assert dial.num_connections == 2


async def test_exception_of_the_block_comes_out_bare():
    with pytest.raises(KeyError):
        async with open_lanes("ws://x"):
            raise KeyError


async def test_run_with_a_connection_of_its_own_may_be_on_a_lane_too(autojump_clock):
    async with open_served(TWO_CALLS) as served:
        dial = Dial(served)
        async with open_run("ws://x", input="go", tools=[look], stream_id="a", connector=dial) as run:
            assert (await run.result()).text == "Done with thing 2."
    assert {frame["stream_id"] for frame in dial.sent} == {"a"}
