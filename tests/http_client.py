"""An HTTP client without sockets for tests: JSON in, JSON or server-sent events out, a connection for each request."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

Json = dict[str, Any]


class Reply:
    """A whole answer."""

    def __init__(self, head: h11.Response, body: bytes) -> None:
        self.status = head.status_code
        self.headers = {name.decode(): value.decode() for name, value in head.headers}
        self.json: Any = json.loads(body)

    @property
    def error(self) -> Json:
        """The error it brings."""
        error: Json = self.json["error"]
        assert error.keys() == {"type", "code", "message", "param"}
        return error


class EventStream:
    """The events of a streamed answer. `chunks` are the parts of the body as they came."""

    def __init__(self, exchange: "_Exchange", head: h11.Response) -> None:
        self._exchange = exchange
        self.status = head.status_code
        self.headers = {name.decode(): value.decode() for name, value in head.headers}
        self.chunks: list[str] = []

    async def next(self) -> Json | None:
        """The next event; None for `[DONE]`. Each event must be one chunk and named by its type."""
        while True:
            chunk = await self._exchange.next_chunk()
            assert chunk is not None, "the stream ended without [DONE]"
            self.chunks.append(chunk.decode())
            if self.chunks[-1] == "data: [DONE]\n\n":
                assert await self._exchange.next_chunk() is None
                return None
            if self.chunks[-1].startswith(":"):
                continue
            name, data, *rest = self.chunks[-1].split("\n")
            assert rest == ["", ""]
            event: Json = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            return event

    async def until(self, type_: str) -> list[Json]:
        """Events up to the first of this type."""
        events: list[Json] = []
        while not events or events[-1]["type"] != type_:
            event = await self.next()
            assert event is not None, f"no {type_} among {events}"
            events.append(event)
        return events

    async def rest(self) -> list[Json]:
        """Events up to `[DONE]`."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


class Http:
    """Requests to one server under one key."""

    def __init__(self, open_stream: Callable[[], trio.abc.Stream], key: str | None) -> None:
        self._open_stream = open_stream
        self._key = key

    async def ask(self, method: str, path: str, body: Json | None = None) -> Reply:
        """One request and its whole answer."""
        async with self._exchange(method, path, body) as exchange:
            return Reply(await exchange.next_head(), await exchange.read_body())

    async def get(self, path: str) -> Reply:
        return await self.ask("GET", path)

    async def post(self, path: str, **body: Any) -> Reply:
        return await self.ask("POST", path, body)

    async def delete(self, path: str) -> Reply:
        return await self.ask("DELETE", path)

    async def create(self, **fields: Any) -> Reply:
        """A run, whole."""
        return await self.post("/v1/responses", **({"input": "go"} | fields))

    @asynccontextmanager
    async def stream(self, method: str, path: str, **body: Any) -> AsyncIterator[EventStream]:
        """A request answered by events; leaving the block drops the connection."""
        async with self._exchange(method, path, body or None) as exchange:
            head = await exchange.next_head()
            assert head.status_code == 200, await exchange.read_body()
            yield EventStream(exchange, head)

    async def events(self, **fields: Any) -> list[Json]:
        """All events of a run."""
        async with self.stream("POST", "/v1/responses", **({"input": "go", "stream": True} | fields)) as stream:
            return await stream.rest()

    @asynccontextmanager
    async def _exchange(self, method: str, path: str, body: Json | None) -> AsyncIterator["_Exchange"]:
        stream = self._open_stream()
        exchange = _Exchange(stream)
        headers = [("Host", "localhost"), *([("Authorization", f"Bearer {self._key}")] if self._key else [])]
        await exchange.send(method, path, headers, b"" if body is None else json.dumps(body).encode())
        try:
            yield exchange
        finally:
            await trio.aclose_forcefully(stream)


class _Exchange:
    """One request and its answer on a connection of their own."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        length = [("Content-Length", str(len(body)))] if body else []
        request = h11.Request(method=method, target=path, headers=[*headers, *length])
        events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        await self._stream.send_all(b"".join(self._h11.send(event) or b"" for event in events))

    async def _next(self) -> h11.Event:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                return event
            with trio.fail_after(1000):  # of the mock clock, in tests that let time pass
                self._h11.receive_data(bytes(await self._stream.receive_some()))

    async def next_head(self) -> h11.Response:
        head = await self._next()
        assert isinstance(head, h11.Response), head
        return head

    async def next_chunk(self) -> bytes | None:
        """The next whole HTTP chunk, None at the end."""
        chunk = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            chunk += event.data
            if event.chunk_end:
                return bytes(chunk)
        assert isinstance(event, h11.EndOfMessage) and not chunk, event
        return None

    async def read_body(self) -> bytes:
        body = b""
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
        return body
