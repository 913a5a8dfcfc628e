"""Dialling a server over TCP: what works, and what the ways of being refused become."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from engine.client import open_run
from engine.client_wire import ConnectionLost, RunFailed, WebSocketConnector
from engine.trace import open_trace, read_trace
from tests.served import open_served

Handler = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    """The URL of a TCP server with this handler."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handler, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def refusing(status: str, body: str) -> Handler:
    async def handler(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await stream.send_all((head + body).encode())
        await stream.aclose()

    return handler


async def closing(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def silent(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass
    await stream.aclose()


async def dial(handler: Handler, timeout_s: float = 5) -> BaseException:
    """What comes of connecting."""
    with trio.fail_after(5):
        async with listening(handler) as url:
            try:
                async with WebSocketConnector(url, api_key="k", connect_timeout_s=timeout_s).open():
                    raise AssertionError("connected")
            except (ConnectionLost, RunFailed) as error:
                return error


BODY = '{"error": {"code": "invalid_api_key", "message": "Wrong key.", "param": null}}'


@pytest.mark.parametrize("body", [BODY, "", "no json", "[]"])
async def test_refusal_for_good_names_the_servers_reason(body):
    error = await dial(refusing("401 Unauthorized", body))
    assert isinstance(error, RunFailed)
    assert error.status == 401
    if body == BODY:
        assert (error.code, "Wrong key." in error.message) == ("invalid_api_key", True)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_refusal_that_may_pass_can_be_retried(status):
    assert isinstance(await dial(refusing(status, "{}")), ConnectionLost)


@pytest.mark.parametrize("handler", [silent, closing])
async def test_server_that_shakes_no_hands_is_given_up_in_time(handler):
    error = await dial(handler, timeout_s=0.2)
    assert isinstance(error, ConnectionLost)


async def test_nobody_listens():
    with trio.fail_after(5), pytest.raises(ConnectionLost, match="cannot connect to ws://127"):
        async with WebSocketConnector("http://127.0.0.1:1").open():
            raise AssertionError("connected")


async def test_run_over_tcp_leaves_a_trace_without_the_key(tmp_path):
    path = tmp_path / "trace.jsonl"

    async def look(n: int) -> int:
        """Look."""
        return n

    with trio.fail_after(10):
        async with open_served() as served, listening(served.app.serve_stream) as url:
            with open_trace(path) as trace:
                async with open_run(url, input="go", tools=[look], api_key="secret-key", trace=trace) as run:
                    assert (await run.result()).text == "Done with 2."
    lines = read_trace(path)
    assert (lines[0].dir, lines[1].dir, lines[-1].dir) == ("open", "send", "close")
    assert "secret-key" not in path.read_text()


async def test_closed_by_the_server_says_code_and_reason():
    with trio.fail_after(10):
        async with (
            open_served(max_frame_bytes=100) as served,
            listening(served.app.serve_stream) as url,
            WebSocketConnector(url).open() as connection,
        ):
            await connection.send("x" * 1000)
            with pytest.raises(ConnectionLost, match="1009"):
                while True:
                    await connection.receive()
