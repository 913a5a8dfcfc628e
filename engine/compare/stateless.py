"""The baseline: HTTP and server-sent events, the whole history with every request, on one warm connection."""

import json
import time
from typing import Any

import h11
import trio

from engine.compare.played import CountingStream, Played
from engine.compare.work import TASK, TOOL, answers

_CHUNK_BYTES = 1 << 16


async def play_stateless(port: int) -> Played:
    """A request for each step; input and output of all before come with it."""
    played = Played("stateless")
    async with CountingStream(await trio.open_tcp_stream("127.0.0.1", port)) as stream:
        client = _Client(stream, port)
        history: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
        start = time.perf_counter_ns()
        while True:
            response = await client.create(input=history, tools=[TOOL], store=False)
            made = response["output"]
            played.items += made
            played.count(response["timing"]["step"])
            outputs = answers(made)
            if not outputs:
                break
            history += [*made, *outputs]
        played.wall_ms = (time.perf_counter_ns() - start) / 1e6
        played.bytes_sent, played.bytes_received = stream.bytes_sent, stream.bytes_received
    return played


class _Client:
    """Requests over one connection, one after the other."""

    def __init__(self, stream: trio.abc.Stream, port: int) -> None:
        self._stream = stream
        self._host = f"127.0.0.1:{port}"
        self._h11 = h11.Connection(h11.CLIENT)

    async def create(self, **fields: Any) -> dict[str, Any]:
        """POST a streamed response; its final object."""
        body = json.dumps(fields | {"stream": True}).encode()
        await self._send(body)
        head = await self._next_event()
        assert isinstance(head, h11.Response)
        text = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            text += event.data
        self._h11.start_next_cycle()
        if head.status_code != 200:
            raise RuntimeError(f"status {head.status_code}: {text.decode()}")
        return _final_response(text.decode())

    async def _send(self, body: bytes) -> None:
        headers = [
            ("host", self._host),
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        request = h11.Request(method="POST", target="/v1/responses", headers=headers)
        parts = [self._h11.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
        await self._stream.send_all(b"".join(part for part in parts if part))

    async def _next_event(self) -> h11.Event:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                return event
            self._h11.receive_data(bytes(await self._stream.receive_some(_CHUNK_BYTES)))


def _final_response(text: str) -> dict[str, Any]:
    """The response object of the stream's terminal event."""
    for block in text.split("\n\n"):
        data = block.partition("data: ")[2]
        if data and data != "[DONE]":
            event = json.loads(data)
            if event["type"] == "response.completed":
                response: dict[str, Any] = event["response"]
                return response
            if event["type"] in ("error", "response.failed", "response.incomplete"):
                raise RuntimeError(f"the run ended: {event}")
    raise RuntimeError("the stream ended without a terminal event")
