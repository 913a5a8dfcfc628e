"""A served HTTP connection without sockets for tests, and the requests and answers on it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio
from trio.testing import memory_stream_pair

from engine.errors import NotFound
from engine.server.access import Admission
from engine.server.exchange import Request, json_answer
from engine.server.http import Outcome, Route, Upgrade, serve_http
from engine.server.routes import Routes, Service
from engine.settings import Settings

SMALL = Settings(max_head_bytes=300, max_body_bytes=20)
TIMES = Settings()
GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
EXPECT = b"POST /b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)

Reply = tuple[int, dict[str, str], Any]


async def echo(request: Request) -> Outcome:
    """Reads every body and says what it got."""
    return json_answer({"path": request.head.path, "body": (await request.read_body()).decode()})


async def ignore_body(request: Request) -> Outcome:
    """Refuses without a look at the body."""
    raise NotFound(f"no {request.head.path}", code="unknown_url")


real_routes = Routes(Service, TIMES)


async def no_upgrade(stream: trio.abc.Stream, admission: Admission) -> None:
    raise AssertionError("nothing here upgrades")


@asynccontextmanager
async def serving(
    settings: Settings = TIMES,
    route: Route = echo,
    upgrade: Upgrade = no_upgrade,
    closing: trio.Event | None = None,
) -> AsyncIterator[trio.abc.HalfCloseableStream]:
    """The client's end of a served connection. Leaving waits until the server has let go of its own end."""
    client, server = memory_stream_pair()
    with trio.fail_after(1000):  # of the mock clock; longer than every deadline under test
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, server, settings, route, upgrade, closing)
            yield client
            await client.aclose()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything until the server closes."""
    return b"".join([bytes(part) async for part in stream])


def replies(wire: bytes, *methods: bytes) -> list[Reply]:
    """Status, headers and JSON of the answers to GETs, or to requests with these methods, in `wire`."""
    found: list[Reply] = []
    while wire:
        method = methods[len(found)] if methods else b"GET"
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(wire)
        events = []
        while type(event := client.next_event()) is not h11.EndOfMessage:
            assert isinstance(event, h11.Event), f"cut answer: {wire!r}"
            events.append(event)
        (head,) = (event for event in events if isinstance(event, h11.Response))
        body = b"".join(event.data for event in events if isinstance(event, h11.Data))
        headers = {name.decode(): value.decode() for name, value in head.headers}
        found.append((head.status_code, headers, json.loads(body) if body else None))
        wire = client.trailing_data[0]
    return found


async def answers(wire: bytes, *, settings: Settings = TIMES, route: Route = echo) -> list[Reply]:
    """Send `wire`, half-close, and give what came back."""
    async with serving(settings, route) as client:
        await client.send_all(wire)
        await client.send_eof()
        return replies(await read_all(client))


async def last_error(wire: bytes, settings: Settings = TIMES) -> tuple[int, str]:
    """Status and code of the error that ends the connection, while the client keeps its side open."""
    async with serving(settings) as client:
        await client.send_all(wire)
        status, headers, body = replies(await read_all(client))[-1]
    assert headers["connection"] == "close"
    assert body["error"].keys() == {"type", "code", "message", "param"}
    return status, body["error"]["code"]


def posting(num_bytes: int) -> bytes:
    """A POST with a body of this length."""
    return POST.replace(b"5\r\n\r\nhello", b"%d\r\n\r\n" % num_bytes) + b"x" * num_bytes
