"""The designs over HTTP and server-sent events: a request for each turn.

A client either keeps its connection or opens one for each request; both are common, so both are measured.
"""

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any, Final

import h11
import trio

from engine.compare.played import Course, RunFailed, check
from engine.compare.target import Target
from engine.compare.tls import wrap

_CHUNK_BYTES: Final = 1 << 16


async def play_stateless(target: Target, course: Course, *, keeps: bool) -> None:
    """The whole history with every request; the server keeps nothing."""
    history: list[Any] = [{"role": "user", "content": course.work.script.task}]
    async with Client(target, course, keeps=keeps) as client:
        for turn in count():
            response = await client.create(target.request(turn) | {"input": history, "store": False})
            outputs = await course.answers(response["output"])
            if not outputs:
                return
            history += [*response["output"], *outputs]


async def play_previous(target: Target, course: Course, *, keeps: bool) -> None:
    """What is new, with the id of the response before, which the server has stored."""
    request: dict[str, Any] = {"input": course.work.script.task, "store": True}
    async with Client(target, course, keeps=keeps) as client:
        for turn in count():
            response = await client.create(target.request(turn) | request)
            outputs = await course.answers(response["output"])
            if not outputs:
                return
            request |= {"input": outputs, "previous_response_id": response["id"]}


class Client:
    """Requests one after the other, over one connection or each over its own."""

    def __init__(self, target: Target, course: Course, *, keeps: bool) -> None:
        self._target = target
        self._course = course
        self._keeps = keeps
        self._stream: trio.abc.Stream | None = None
        self._h11 = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._hang_up()

    async def create(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """POST a request for a stream; the response object at its end. Raises RunFailed."""
        self._course.asks()
        body = json.dumps({**fields, "stream": True}).encode()
        if self._stream is None:
            self._stream = await self._connect()
        await self._send(self._stream, body)
        async with aclosing(self._events(self._stream)) as events:
            response = await self._follow(events)
        if self._keeps:
            self._h11.start_next_cycle()
        else:
            await self._hang_up()
        return response

    async def _connect(self) -> trio.abc.Stream:
        self._h11 = h11.Connection(h11.CLIENT)
        stream = await trio.open_tcp_stream("127.0.0.1", self._target.port)
        self._course.connects(1)  # the proxy answers at once and holds what comes after it for as long
        return stream if self._target.tls is None else await self._secure(stream, self._target.tls)

    async def _secure(self, stream: trio.SocketStream, context: ssl.SSLContext) -> trio.abc.Stream:
        secured = wrap(stream, context)
        await secured.do_handshake()
        self._course.connects(1)  # TLS 1.3
        return secured

    async def _hang_up(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await trio.aclose_forcefully(stream)

    async def _send(self, stream: trio.abc.Stream, body: bytes) -> None:
        headers = [
            ("host", f"127.0.0.1:{self._target.port}"),
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        request = h11.Request(method="POST", target="/v1/responses", headers=headers)
        parts = [self._h11.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
        await stream.send_all(b"".join(part for part in parts if part))

    async def _follow(self, events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        response: dict[str, Any] | None = None
        async for event in events:
            self._course.sees(check(event))
            if event["type"] == "response.completed":
                response = event["response"]
        if response is None:
            raise RunFailed("the stream ended without a terminal event")
        return response

    async def _events(self, stream: trio.abc.Stream) -> AsyncGenerator[dict[str, Any], None]:
        head = await self._next(stream)
        assert isinstance(head, h11.Response), head
        text = bytearray()
        while isinstance(event := await self._next(stream), h11.Data):
            text += event.data
            if head.status_code != 200:
                continue
            *blocks, rest = text.split(b"\n\n")
            text = bytearray(rest)
            for block in blocks:
                data = block.partition(b"data: ")[2]
                if data and data != b"[DONE]":
                    yield json.loads(data)
        if head.status_code != 200:
            raise RunFailed(f"status {head.status_code}: {text.decode()}")

    async def _next(self, stream: trio.abc.Stream) -> h11.Event:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                return event
            self._h11.receive_data(bytes(await stream.receive_some(_CHUNK_BYTES)))
