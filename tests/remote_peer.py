"""A service for tests that does what it is told: each request gets the next reply, byte for byte."""

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import msgspec
import trio


@dataclass
class Asked:
    """A request as it came, and the number of its connection."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def value(self) -> Any:
        """The body, whatever its encoding."""
        data = gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body
        return msgspec.msgpack.decode(data) if "msgpack" in self.headers["content-type"] else json.loads(data)


@dataclass
class Reply:
    """What is sent back. Parts: bytes of the body, one HTTP chunk each; a number waits so many seconds, None for ever.

    cut: the connection closes after so many bytes of all this.
    """

    parts: list[bytes | float | None]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    cut: int | None = None

    def raw(self) -> list[bytes | float | None]:
        """Bytes on the wire, with the waits between them."""
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        begin = f"HTTP/1.1 {self.status} Whatever\r\n{head}transfer-encoding: chunked\r\n\r\n".encode()
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) if isinstance(part, bytes) else part for part in self.parts]
        return [begin, *chunks, b"0\r\n\r\n"]

    @property
    def num_bytes(self) -> int:
        """Length of all that is sent."""
        return sum(len(part) for part in self.raw() if isinstance(part, bytes))


def sse(*values: Any, done: bool = True) -> list[bytes | float | None]:
    """Values as events, one chunk each; numbers and None are waits."""
    chunks = [value if isinstance(value, float) or value is None else event(value) for value in values]
    return [*chunks, b"data: [DONE]\n\n"] if done else chunks


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def refusal(status: int, message: str = "no", **headers: str) -> Reply:
    """An error answer; underscores of header names stand for hyphens."""
    body = json.dumps({"error": {"message": message, "code": None}}).encode()
    return Reply(
        [body], status, {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    )


Answer = Callable[[Asked], Reply]


class Peer:
    """A service. `replies` are used up; when there are none, `answer` is asked."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.replies: list[Reply] = []
        self.asked: list[Asked] = []
        self.num_connections = 0
        self.num_open = 0
        self.closed = trio.Event()  # when a client closes while it is answered
        self.port = 0

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        self.num_connections += 1
        self.num_open += 1
        number = self.num_connections
        try:
            async with stream:
                await self._serve(stream, number)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            self.closed.set()
        finally:
            self.num_open -= 1

    async def _serve(self, stream: trio.SocketStream, number: int) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        while (asked := await _receive(http, stream, number)) is not None:
            self.asked.append(asked)
            reply = self.replies.pop(0) if self.replies else self._answer(asked)
            if not await self._send(stream, reply):
                return
            http = h11.Connection(h11.SERVER)  # what we sent ourselves it does not know of

    def _answer(self, asked: Asked) -> Reply:
        return refusal(404) if self.answer is None else self.answer(asked)

    async def _send(self, stream: trio.SocketStream, reply: Reply) -> bool:
        left = reply.num_bytes if reply.cut is None else reply.cut
        for part in reply.raw():
            if part is None:
                await self._wait_closed(stream)
                return False
            if isinstance(part, float):
                await trio.sleep(part)
                continue
            if left > 0:
                await stream.send_all(part[:left])
            left -= len(part)
            if left < 0:
                return False
        return True

    async def _wait_closed(self, stream: trio.SocketStream) -> None:
        assert await stream.receive_some() == b""
        self.closed.set()


async def _receive(http: h11.Connection, stream: trio.SocketStream, number: int) -> Asked | None:
    head, body = None, b""
    while True:
        event_ = http.next_event()
        if event_ is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(65536))
        elif isinstance(event_, h11.Request):
            head = event_
        elif isinstance(event_, h11.Data):
            body += event_.data
        elif isinstance(event_, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Asked(head.method.decode(), head.target.decode(), headers, body, number)
        else:
            return None


@asynccontextmanager
async def open_peer(answer: Answer | None = None, port: int = 0) -> AsyncIterator[Peer]:
    """A service on a port of this machine; leaving the block drops all its connections."""
    peer = Peer(answer)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        peer.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, peer.serve, listeners)
        yield peer
        nursery.cancel_scope.cancel()
