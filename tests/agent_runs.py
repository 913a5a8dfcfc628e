"""An agent run of many calls by each of the lifecycles, whatever the model behind the server.

The model is to call once a step until it has had enough outputs; a call's output is "seen" and what it was called with.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.http_client import Json
from tests.served import FUNCTION, Client, Served

INPUT: Final[list[Json]] = [{"type": "message", "role": "user", "content": "Look around."}]


class Run:
    """What the client had: the last message, and each step's usage where its lifecycle tells it."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.text = ""
        self.usages: list[Json] = []

    def outputs(self, items: list[Json]) -> list[Json]:
        """The outputs for the calls among these items; what is said is noted."""
        given = []
        for item in items:
            if item["type"] == "message":
                self.text = "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                self.num_calls += 1
                output = f"seen {item['arguments']}"
                given.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        return given


def _items(frames: list[Json]) -> list[Json]:
    return [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]


async def by_append(server: Served) -> Run:
    """One response; outputs are appended at its pauses."""
    run = Run()
    async with server.connect("?lifecycle=append") as client:
        await client.create(input=INPUT)
        while given := await _step(client, run):
            await client.send("response.append", input=given)
    return run


async def by_chain(server: Served) -> Run:
    """A response a step, each going on from the one before."""
    run = Run()
    async with server.connect("?lifecycle=chain") as client:
        await client.create(input=INPUT)
        while given := await _step(client, run):
            await client.create(input=given, previous_response_id=run.response_id)
    return run


async def _step(client: Client, run: Any) -> list[Json]:
    frames = await client.step()
    assert frames[-1]["type"] in ("response.done", "response.completed"), frames[-1]
    run.response_id = frames[-1]["response"]["id"]
    run.usages.append(frames[-1]["response"]["usage"])
    given: list[Json] = run.outputs(_items(frames))
    return given


async def by_inject(server: Served) -> Run:
    """One response without terminals at its pauses; outputs are injected when their calls have come."""
    run, response_id = Run(), ""
    async with server.connect("?lifecycle=inject") as client:
        await client.create(input=INPUT)
        while True:
            frame = await client.receive()
            response_id = response_id or frame["response"]["id"]
            if frame["type"] == "response.completed":
                run.usages.append(frame["response"]["usage"])
                return run
            if given := run.outputs(_items([frame])):
                await client.send("response.inject", response_id=response_id, input=given)


async def by_http(server: Served) -> Run:
    """A request a step, with everything before it."""
    run, everything = Run(), list(INPUT)
    http = server.http()
    while True:
        reply = await http.create(input=everything, tools=[FUNCTION], store=False)
        assert reply.json["status"] == "completed", reply.json
        run.usages.append(reply.json["usage"])
        items = reply.json["output"]
        given = run.outputs(items)
        if not given:
            return run
        everything += [*items, *given]


LIFECYCLES: Final[dict[str, Callable[[Served], Awaitable[Run]]]] = {
    "append": by_append,
    "inject": by_inject,
    "chain": by_chain,
    "stateless": by_http,
}


def arguments(number: int) -> str:
    """What the model calls with."""
    return json.dumps({"n": number})
