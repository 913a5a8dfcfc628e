"""The default model calls a function of the server's, two MCP tools and a client's tool in one step, in each lifecycle.

One of the MCP tools needs approval. What a tool waits for is the others: run one after the other, none would return.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import trio

from engine.backends.base import Backend
from engine.commands.backend import choose_backend
from engine.hosted.configured import open_hosts
from engine.hosted.functions import FunctionHost, HostedFunction
from engine.hosted.mcp_host import McpHost
from engine.settings import Settings
from engine.store_fake import MemoryStore
from tests.http_client import Http
from tests.mcp_server import open_mcp_server
from tests.served import Client, open_served

pytestmark = pytest.mark.model

Json = dict[str, Any]
_PATIENCE_S: Final = 60  # a run takes three seconds; the rest is for a machine that others use too
SETTINGS: Final[Json] = {
    "tools": ["abacus"],
    "mcp_hosts": ["127.0.0.1"],
    "mcp_networks": ["127.0.0.0/8"],
    "dtype": "float32",
    "threads": 1,
}
LOOK: Final[Json] = {
    "type": "function",
    "name": "look",
    "description": "Look out of the window.",
    "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
}
# Greedy, so the same calls are written every time: look, count, refund, weigh.
ASKED: Final[Json] = {
    "input": "Look, count to 3, refund order 7 and weigh order 7.",
    "tool_choice": "required",
    "temperature": 0,
    "max_output_tokens": 200,
}
ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")


class Meeting:
    """Where tools wait until all of them are there."""

    def __init__(self, *names: str) -> None:
        self._missing = set(names)
        self._changed = threading.Condition()

    def join(self, name: str) -> None:
        """Return when everybody has come."""
        with self._changed:
            self._missing.discard(name)
            self._changed.notify_all()
            met = self._changed.wait_for(lambda: not self._missing, _PATIENCE_S)
        assert met, f"{name} was left alone without {self._missing}"


class Desk:
    """The client's side: it looks out of the window, and approves. `answers` has both."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.answers: list[Json] = []

    async def hear(self, item: Json) -> Json | None:
        """The answer to an item; None where it needs none."""
        if item["type"] == "function_call":
            await trio.to_thread.run_sync(self._meeting.join, "look")
            answer = {"type": "function_call_output", "call_id": item["call_id"], "output": "a window"}
        elif item["type"] == "mcp_approval_request":
            answer = {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
        else:
            return None
        self.answers.append(answer)
        return answer


async def test_default_model_goes_through_a_mixed_step_in_every_lifecycle() -> None:  # P120, P122, P126, P127
    chosen = Settings(**SETTINGS)
    async with choose_backend(chosen, lambda what, fraction: None) as backend:
        await backend.wait_ready()
        for lifecycle in ("append", "inject", "chain", "stateless"):
            # Where outputs come with the next request, the approved call and the client's have their time after it.
            is_open = lifecycle in ("append", "inject")
            meeting = Meeting("count", "weigh", *(("look", "refund") if is_open else ()))
            items = await _run(lifecycle, backend, meeting)
            kinds = sorted(item["type"] for item in items)
            calls = ["function_call", "mcp_approval_request", "mcp_call", "mcp_call", "mcp_call"]
            assert kinds == [*calls, "mcp_list_tools", "message"], lifecycle
            hosted = {item["name"]: item.get("output") for item in items if item["type"] == "mcp_call"}
            assert hosted == {
                "count": "1 2 3",
                "weigh": "order 7 weighs 300 g",
                "refund": "order 7 is paid back",
            }, lifecycle
            assert items[-1]["type"] == "message" and items[-1]["content"][0]["text"], lifecycle


async def _run(lifecycle: str, backend: Backend, meeting: Meeting) -> list[Json]:
    """The items of the whole run."""

    def count(to: int) -> str:
        """Count."""
        meeting.join("count")
        return " ".join(map(str, range(1, to + 1)))

    with open_mcp_server(meeting.join) as peer:
        shop = {"type": "mcp", "server_label": "shop", "server_url": peer.url}
        shop |= {"allowed_tools": ["weigh", "refund"], "require_approval": {"never": {"tool_names": ["weigh"]}}}
        asked = ASKED | {"tools": [LOOK, {"type": "mcp", "server_label": "abacus"}, shop]}
        transport = {} if lifecycle == "stateless" else {"lifecycle": lifecycle}
        async with open_hosts(Settings(**SETTINGS | {"tools": []})) as remote:
            hosts = {"mcp": McpHost(FunctionHost({"abacus": [HostedFunction(count)]}, 1), remote["mcp"])}
            async with open_served(
                backend=backend, hosts=hosts, store=MemoryStore(), **SETTINGS, **transport
            ) as served:
                if lifecycle == "stateless":
                    items = await _over_http(served.http(), asked, Desk(meeting))
                else:
                    async with served.connect(patience_s=_PATIENCE_S) as client:
                        items = await _over_websocket(client, lifecycle, asked, Desk(meeting))
    assert sorted(peer.calls) == ["refund 7", "tools/list", "weigh 7"], lifecycle
    return items


async def _over_websocket(client: Client, lifecycle: str, asked: Json, desk: Desk) -> list[Json]:
    """Answers go out as soon as they are there, or in a chain with the second create."""
    await client.create(**asked)
    response_id = (await client.receive())["response"]["id"]

    async def hear(item: Json) -> None:
        answer = await desk.hear(item)
        if answer and lifecycle != "chain":
            await client.send(f"response.{lifecycle}", response_id=response_id, input=[answer])

    response = await _until_end(client, hear)
    if lifecycle != "chain":
        return list(response["output"])
    await client.create(**_second(asked, response, desk))
    return [*response["output"], *(await _until_end(client, hear))["output"]]


async def _until_end(client: Client, hear: Callable[[Json], Awaitable[None]]) -> Json:
    """The whole response, when it has ended and everything in it was heard."""
    async with trio.open_nursery() as nursery:
        while (frame := await client.receive())["type"] not in ENDS:
            if frame["type"] == "response.output_item.done":
                nursery.start_soon(hear, frame["item"])
    assert frame["type"] == "response.completed", frame
    response: Json = frame["response"]
    return response


async def _over_http(http: Http, asked: Json, desk: Desk) -> list[Json]:
    """Two requests, the second of which brings the answers."""
    first = (await http.create(**asked)).json
    for item in first["output"]:
        await desk.hear(item)
    second = (await http.create(**_second(asked, first, desk))).json
    return [*first["output"], *second["output"]]


def _second(asked: Json, first: Json, desk: Desk) -> Json:
    """The request that goes on from the first response."""
    return asked | {"input": desk.answers, "previous_response_id": first["id"], "tool_choice": "auto"}
