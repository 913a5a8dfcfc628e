"""The designs that use a WebSocket, each played the way its clients do."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from trio_websocket import WebSocketConnection

from engine.bench.sockets import open_socket
from engine.compare.played import CountingStream, Played
from engine.compare.work import TASK, TOOL, answers

Frame = dict[str, Any]
Play = Callable[[WebSocketConnection, Played], Awaitable[None]]


async def play_append(port: int) -> Played:
    """One long-lived response: outputs are appended to it."""
    return await _play("append", port, _append)


async def play_inject(port: int) -> Played:
    """The same under the beta's names: each output is injected by the response's id."""
    return await _play("inject", port, _inject)


async def play_chain(port: int) -> Played:
    """A chain of responses: each names the one before and brings the outputs."""
    return await _play("chain", port, _chain)


async def _play(lifecycle: str, port: int, play: Play) -> Played:
    played = Played(lifecycle)
    async with _open_counted(port, lifecycle) as (ws, counted):
        before = counted.bytes_sent, counted.bytes_received
        start = time.perf_counter_ns()
        await play(ws, played)
        played.wall_ms = (time.perf_counter_ns() - start) / 1e6
        played.bytes_sent = counted.bytes_sent - before[0]
        played.bytes_received = counted.bytes_received - before[1]
    return played


@asynccontextmanager
async def _open_counted(port: int, lifecycle: str) -> AsyncIterator[tuple[WebSocketConnection, CountingStream]]:
    counted: list[CountingStream] = []

    def wrap(stream: Any) -> CountingStream:
        counted.append(CountingStream(stream))
        return counted[0]

    async with open_socket(port, f"/v1/responses?lifecycle={lifecycle}", wrap) as ws:
        yield ws, counted[0]


async def _append(ws: WebSocketConnection, played: Played) -> None:
    await _send(ws, type="response.create", input=TASK, tools=[TOOL], store=False)
    while True:
        end, made = await _step(ws, "response.done", "response.completed")
        _take(end, made, played)
        if end["type"] == "response.completed":
            return
        await _send(ws, type="response.append", input=answers(made))


async def _inject(ws: WebSocketConnection, played: Played) -> None:
    await _send(ws, type="response.create", input=TASK, tools=[TOOL], store=False)
    response_id = ""
    while True:
        frame = await _receive(ws)
        match frame["type"]:
            case "response.created":
                response_id = frame["response"]["id"]
            case "response.output_item.done":
                item = frame["item"]
                played.items.append(item)
                for answer in answers([item]):
                    await _send(ws, type="response.inject", response_id=response_id, input=[answer])
            case "response.completed":
                # A pause has no frame here, so the run's totals are all there is.
                played.count(frame["response"]["timing"]["run"])
                played.num_steps = sum(item["type"] == "function_call" for item in played.items) + 1
                return


async def _chain(ws: WebSocketConnection, played: Played) -> None:
    fields: Frame = {"type": "response.create", "tools": [TOOL], "store": False}
    await _send(ws, **fields, input=TASK)
    while True:
        end, made = await _step(ws, "response.completed")
        _take(end, made, played)
        outputs = answers(made)
        if not outputs:
            return
        await _send(ws, **fields, previous_response_id=end["response"]["id"], input=outputs)


def _take(end: Frame, made: list[Frame], played: Played) -> None:
    played.items += made
    played.count(end["response"]["timing"]["step"])


async def _step(ws: WebSocketConnection, *ends: str) -> tuple[Frame, list[Frame]]:
    """The frame that ends the step, and the items it made."""
    made = []
    while True:
        frame = await _receive(ws)
        if frame["type"] == "response.output_item.done":
            made.append(frame["item"])
        elif frame["type"] in ends:
            return frame, made


async def _send(ws: WebSocketConnection, **fields: Any) -> None:
    await ws.send_message(json.dumps(fields))


async def _receive(ws: WebSocketConnection) -> Frame:
    frame: Frame = json.loads(await ws.get_message())
    if frame["type"] in ("error", "response.failed", "response.incomplete", "response.inject.failed"):
        raise RuntimeError(f"the run ended: {frame}")
    return frame
