"""Any interleaving of what a client of the chain lifecycle can do over several lanes keeps the protocol's promises.

Every response ends with exactly one terminal event, its sequence numbers rise by one, and nothing of one lane shows up
on another: however creates, continuations, forks, steers, cancels and a drop of the connection fall together.
"""

import json
from collections import defaultdict
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.served import FUNCTION, Client, Served, open_served

SCENARIO = """
model: walk
pace: {ttft_ms: 20, tokens_per_second: 200}
steps:
  - text: {words: 20}
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - text: {words: 30}
  - calls: [{name: look, arguments: {n: 3}}]
  - text: "Done with {last_output}."
at_end: repeat
"""
LANES = (None, "a", "b")
TERMINALS = {"response.completed", "response.incomplete", "response.failed"}
QUIET_S = 60

actions = st.tuples(
    st.sampled_from(("create", "continue", "continue", "fork", "steer", "steer", "cancel", "warm up", "bad")),
    st.sampled_from(LANES),
    st.sampled_from((0.0, 0.004, 0.03, 0.2, 1.0)),  # seconds until the next one
)


class Walker:
    """A client that remembers, by lane, what it was told."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.frames: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
        self.last: dict[str | None, dict[str, Any]] = {}

    async def read(self) -> None:
        """Take frames in until the connection ends."""
        while True:
            frame = json.loads(await self.client.ws.get_message())
            self.frames[frame.get("stream_id")].append(frame)
            if "response" in frame:
                self.last[frame.get("stream_id")] = frame["response"]

    async def act(self, kind: str, lane: str | None) -> None:
        """Do one thing on a lane; what makes no sense just now becomes what does."""
        place = {} if lane is None else {"stream_id": lane}
        last = self.last.get(lane)
        source = self.last.get(next(other for other in LANES if other != lane)) if kind == "fork" else last
        match kind:
            case "continue" | "fork" if source is not None:
                await self._create(place, previous_response_id=source["id"], input=_outputs(source) or "go on")
            case "steer" if last is not None:
                await self.client.send("response.steer", previous_response_id=last["id"], input="hurry", **place)
            case "cancel":
                await self.client.send("response.cancel", **place)
            case "warm up":
                await self._create(place, generate=False)
            case "bad":
                await self._create(place, input=[{"type": "function_call_output", "call_id": "x", "output": ""}])
            case _:
                await self._create(place)

    async def _create(self, place: dict[str, str], **fields: Any) -> None:
        frame: dict[str, Any] = {"input": "go", "tools": [FUNCTION], "store": False}
        await self.client.send("response.create", **(frame | fields | place))


def _outputs(response: dict[str, Any]) -> list[dict[str, Any]]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "seen"} for call in calls]


@given(st.lists(actions, min_size=1, max_size=25), st.booleans())
def test_any_interleaving_over_lanes_keeps_every_promise(steps, drops) -> None:
    async def walk() -> None:
        async with open_served(SCENARIO, lifecycle="chain", max_in_flight=2) as server:
            walker = await _walk(server, steps, drops)
        _check(walker, is_whole=not drops)

    trio.run(walk, clock=MockClock(autojump_threshold=0))


async def _walk(server: Served, steps: list[tuple[str, str | None, float]], drops: bool) -> Walker:
    async with server.connect() as client, trio.open_nursery() as nursery:
        walker = Walker(client)
        nursery.start_soon(walker.read)
        for kind, lane, pause_s in steps:
            await walker.act(kind, lane)
            await trio.sleep(pause_s)
        if not drops:
            await trio.sleep(QUIET_S)
        nursery.cancel_scope.cancel()
    # Whatever became of the connection, nothing goes on without it.
    await trio.sleep(QUIET_S)
    assert not server.app.responses.has_open
    return walker


def _check(walker: Walker, *, is_whole: bool) -> None:
    seen: dict[str, str | None] = {}
    for lane, frames in walker.frames.items():
        assert lane in LANES
        current: str | None = None
        next_number = 0
        for frame in frames:
            if "sequence_number" not in frame:
                assert frame["type"].startswith(("response.steer.", "error")), frame
                continue
            assert frame["sequence_number"] == next_number, frame
            if frame["type"] == "response.created":
                assert current is None
                current = frame["response"]["id"]
                assert current not in seen
                seen[current] = lane
            assert current is not None
            assert frame.get("response", {"id": current})["id"] == current
            next_number += 1
            if frame["type"] in TERMINALS:
                current, next_number = None, 0
        if is_whole:
            assert current is None, f"{current} on lane {lane} has no terminal"
