"""A server without sockets for tests: memory streams in, WebSocket clients out, a scenario as its model."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair
from trio_websocket import WebSocketConnection, wrap_client_stream

from engine.backends.base import Backend
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.hosted.base import Host
from engine.ledger import Ledger
from engine.safety.configured import make_lookout
from engine.safety.judge import Judge
from engine.safety.policies import compile_policies
from engine.sealing import KEY_BYTES
from engine.server.app import App, open_app
from engine.settings import Settings
from engine.store import Store
from tests.http_client import Http

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
TWO_CALLS = """
model: test
steps:
  - text: I look twice.
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - text: "Done with {last_output}."
"""


class Client:
    """A WebSocket client that thinks in JSON frames. `patience_s`: the longest that a frame may take to come."""

    def __init__(self, ws: WebSocketConnection, patience_s: float = 5) -> None:
        self.ws = ws
        self._patience_s = patience_s

    async def send(self, type_: str, **fields: Any) -> None:
        """One frame."""
        await self.ws.send_message(json.dumps({"type": type_} | fields))

    async def create(self, **fields: Any) -> None:
        """A `response.create` with a function to call."""
        await self.send("response.create", **({"input": "go", "tools": [FUNCTION]} | fields))

    async def receive(self) -> dict[str, Any]:
        """The next frame."""
        with trio.fail_after(self._patience_s):
            frame: dict[str, Any] = json.loads(await self.ws.get_message())
        return frame

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Frames up to the first of one of these types."""
        frames = [await self.receive()]
        while frames[-1]["type"] not in types:
            frames.append(await self.receive())
        return frames

    async def step(self) -> list[dict[str, Any]]:
        """Frames up to the end of the step."""
        return await self.until(
            "response.done", "response.completed", "response.incomplete", "response.failed", "error"
        )

    async def answer(self, *outputs: tuple[str, str], **fields: Any) -> None:
        """An append with these (call_id, output)."""
        items = [{"type": "function_call_output", "call_id": key, "output": output} for key, output in outputs]
        await self.send("response.append", input=items, **fields)


def pending(frames: list[dict[str, Any]]) -> list[str]:
    """The keys that a step's `response.done` waits for."""
    assert frames[-1]["type"] == "response.done", frames[-1]
    return [call["answer_key"] for call in frames[-1]["response"]["pending"]]


class Served:
    """A running server and its settings."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self.app = app
        self._nursery = nursery

    def stream(self, *, lockstep: bool = False) -> trio.abc.Stream:
        """A raw connection to it; with `lockstep` nothing is sent before it is received, as over a full socket."""
        ours, theirs = lockstep_stream_pair() if lockstep else memory_stream_pair()
        self._nursery.start_soon(self.app.serve_stream, theirs)
        return ours

    def http(self, key: str | None = None) -> Http:
        """An HTTP client, with a key or without."""
        return Http(self.stream, key)

    @asynccontextmanager
    async def connect(
        self, query: str = "", headers: list[tuple[bytes, bytes]] | None = None, patience_s: float = 5
    ) -> AsyncIterator[Client]:
        """A WebSocket client; leaving the block drops the connection without a closing handshake."""
        stream = self.stream()
        async with trio.open_nursery() as nursery:
            with trio.fail_after(5):
                ws = await wrap_client_stream(
                    nursery, stream, "localhost", f"/v1/responses{query}", extra_headers=headers
                )
            yield Client(ws, patience_s)
            await stream.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_served(
    scenario: str = TWO_CALLS,
    backend: Backend | None = None,
    store: Store | None = None,
    key: bytes = bytes(KEY_BYTES),
    ledger: Ledger | None = None,
    judges: Mapping[str, Judge] | None = None,
    hosts: Mapping[str, Host] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server that plays `scenario`, in this process, without sockets; lifecycle append unless told otherwise.

    store: where it keeps what is stored, so that another one may find it; without it, nothing is. key: what it seals
    with then. judges: of the models that its policies ask for. hosts: of its own tools, by their types.
    """
    backend = backend or ScriptBackend([parse_scenario(scenario)])
    settings.setdefault("lifecycle", "append")
    chosen = Settings(**settings)
    lookout = make_lookout(chosen, compile_policies(chosen.policies), judges or {})
    async with (
        open_app(backend, chosen, key if store is not None else None, store, ledger, lookout, hosts) as app,
        trio.open_nursery() as nursery,
    ):
        yield Served(app, nursery)
        nursery.cancel_scope.cancel()
