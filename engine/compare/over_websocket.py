"""The designs over a WebSocket, each played the way its clients do."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import trio
from trio_websocket import WebSocketConnection

from engine.bench.sockets import open_socket
from engine.compare.played import Course, Item, check
from engine.compare.target import Target


async def play_chain(target: Target, course: Course) -> None:
    """A chain of responses: each names the one before and brings what is new."""
    async with _open(target, course, "chain") as socket:
        await socket.create()
        for turn in count(1):
            end, made = await socket.step("response.completed")
            outputs = await course.answers(made)
            if not outputs:
                return
            await socket.ask(**_create(target, turn), input=outputs, previous_response_id=end["response"]["id"])


async def play_append(target: Target, course: Course) -> None:
    """One long-lived response: outputs are appended to it when it waits for them."""
    async with _open(target, course, "append") as socket:
        await socket.create()
        for turn in count(1):
            end, made = await socket.step("response.done", "response.completed")
            if end["type"] == "response.completed":
                return
            await socket.ask(type="response.append", **target.choice(turn), input=await course.answers(made))


async def play_append_early(target: Target, course: Course) -> None:
    """The same, but a tool starts when its call is there, and its output is sent at once, while the model samples."""
    async with _open(target, course, "append") as socket:
        await _play_early(socket, lambda output: {"type": "response.append", "input": [output]})


async def play_inject(target: Target, course: Course) -> None:
    """As append early, under the names of the public beta: by the response's id, and no frame at a pause."""
    async with _open(target, course, "inject") as socket:

        def injection(output: Item) -> Item:
            return {"type": "response.inject", "response_id": socket.response_id, "input": [output]}

        await _play_early(socket, injection)


async def _play_early(socket: "_Socket", frame: Callable[[Item], Item]) -> None:
    async def work_on(call: Item) -> None:
        await socket.ask(**frame(await socket.course.answer(call)))

    await socket.create()
    async with trio.open_nursery() as nursery:
        while (event := await socket.receive())["type"] != "response.completed":
            if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
                nursery.start_soon(work_on, event["item"])


@asynccontextmanager
async def _open(target: Target, course: Course, lifecycle: str) -> AsyncIterator["_Socket"]:
    course.asks()
    async with open_socket(target.port, f"/v1/responses?lifecycle={lifecycle}") as ws:
        course.connects(2)  # TCP, and the handshake
        yield _Socket(ws, target, course)


def _create(target: Target, turn: int) -> Item:
    return {"type": "response.create", "store": False, **target.request(turn)}


class _Socket:
    """Frames as JSON; what is seen and asked is noted."""

    def __init__(self, ws: WebSocketConnection, target: Target, course: Course) -> None:
        self.course = course
        self.response_id = ""
        self._ws = ws
        self._target = target

    async def create(self) -> None:
        """The run's first frame. It asks since before the connection was there."""
        await self._send({**_create(self._target, 0), "input": self.course.work.script.task})

    async def ask(self, **frame: Any) -> None:
        """Send what the next step begins with."""
        self.course.asks()
        await self._send(frame)

    async def _send(self, frame: Item) -> None:
        await self._ws.send_message(json.dumps(frame))

    async def receive(self) -> Item:
        """The next event. Raises RunFailed."""
        event: Item = json.loads(await self._ws.get_message())
        self.course.sees(check(event))
        if event["type"] == "response.created":
            self.response_id = event["response"]["id"]
        return event

    async def step(self, *ends: str) -> tuple[Item, list[Item]]:
        """The event that ends the step, and the items that the step made."""
        made = []
        while True:
            event = await self.receive()
            if event["type"] == "response.output_item.done":
                made.append(event["item"])
            elif event["type"] in ends:
                return event, made
