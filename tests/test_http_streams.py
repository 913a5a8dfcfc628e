"""Answers that take time: how streamed ones go out, and what happens when the client leaves meanwhile."""

import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, lockstep_stream_pair

from engine.errors import ServerError
from engine.server.exchange import Request, Send, StreamedAnswer, json_answer
from engine.server.http import Outcome, serve_http
from engine.settings import Settings
from tests.http_peer import GET, POST, SMALL, TIMES, no_upgrade, read_all, replies, serving

GET_STREAM = GET.replace(b"/a", b"/b")
TEXT = (("content-type", "text/plain"), ("x-more", "1"))
Produce = Callable[[Send], Awaitable[None]]


class Serving:
    """A route that streams what `produce` sends, and remembers what became of it."""

    def __init__(self, produce: Produce) -> None:
        self._produce = produce
        self.began = trio.Event()
        self.ended = trio.Event()
        self.was_cancelled = False

    async def route(self, request: Request) -> Outcome:
        if request.head.path == "/a":
            return json_answer({"path": "/a"})
        await self._read(request)
        return StreamedAnswer(self._run, TEXT)

    async def compute(self, request: Request) -> Outcome:
        """As `route`, but everything comes in one whole answer."""
        await self._read(request)

        async def ignore(*chunks: bytes) -> None:
            pass

        await self._run(ignore)
        return json_answer({"path": request.head.path})

    async def _read(self, request: Request) -> None:
        if request.head.method == "POST":
            await request.read_body()

    async def _run(self, send: Send) -> None:
        self.began.set()
        try:
            await self._produce(send)
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        finally:
            self.ended.set()


async def two_parts(send: Send) -> None:
    await send(b"one ")
    await trio.sleep(1)
    await send(b"two")


async def wait_long(send: Send) -> None:
    await trio.sleep(600)


def body_of(wire: bytes) -> bytes:
    return wire.partition(b"\r\n\r\n")[2]


# --- going out -------------------------------------------------------------------------------------------------------


async def test_a_streamed_answer_is_chunked_and_the_connection_goes_on(autojump_clock: MockClock) -> None:
    async with serving(route=Serving(two_parts).route) as client:
        await client.send_all(POST)
        head = bytes(await client.receive_some())
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert {b"transfer-encoding: chunked", b"content-type: text/plain", b"x-more: 1"} <= {
            line.lower() for line in head.split(b"\r\n")
        }
        assert b"connection" not in head.lower()
        assert body_of(head) == b"4\r\none \r\n"
        assert trio.current_time() == 0
        await trio.sleep(2)
        assert await client.receive_some() == b"3\r\ntwo\r\n0\r\n\r\n"
        await client.send_all(GET)
        assert replies(bytes(await client.receive_some()))[0][2] == {"path": "/a"}


async def test_each_send_is_one_write_and_each_part_one_chunk(autojump_clock: MockClock) -> None:
    async def produce(send: Send) -> None:
        await send(b"one")
        await send(b"two", b"three")
        await send(b"four")

    receive, writes = MemoryReceiveStream(), []
    send_stream = MemorySendStream(send_all_hook=None)

    async def record() -> None:
        writes.append(bytes(send_stream.get_data_nowait()))

    send_stream.send_all_hook = record
    receive.put_data(POST)
    async with trio.open_nursery() as nursery:
        stream = trio.StapledStream(send_stream, receive)
        nursery.start_soon(serve_http, stream, TIMES, Serving(produce).route, no_upgrade)
        await trio.testing.wait_all_tasks_blocked()
        receive.put_eof()
    assert body_of(writes[0]) == b"3\r\none\r\n"
    assert writes[1:] == [b"3\r\ntwo\r\n5\r\nthree\r\n", b"4\r\nfour\r\n", b"0\r\n\r\n"]


async def test_for_http_1_0_the_end_is_the_close(autojump_clock: MockClock) -> None:
    async with serving(route=Serving(two_parts).route) as client:
        await client.send_all(POST.replace(b"HTTP/1.1", b"HTTP/1.0"))
        wire = await read_all(client)
        assert b"transfer-encoding" not in wire.lower()
        assert body_of(wire) == b"one two"
        assert trio.current_time() == 1  # half-closed, so nothing lingers


async def test_an_answer_of_nothing_still_has_its_head(autojump_clock: MockClock) -> None:
    async def produce(send: Send) -> None:
        pass

    async with serving(route=Serving(produce).route) as client:
        await client.send_all(POST)
        await trio.testing.wait_all_tasks_blocked()
        wire = bytes(await client.receive_some())
    assert wire.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body_of(wire) == b"0\r\n\r\n"


async def test_a_request_that_comes_meanwhile_is_answered_behind(autojump_clock: MockClock) -> None:
    async with serving(route=Serving(two_parts).route) as client:
        await client.send_all(POST + GET[:10])
        await trio.sleep(0.5)
        await client.send_all(GET[10:] + GET)
        await trio.sleep(1)
        _, end, behind = bytes(await client.receive_some()).partition(b"0\r\n\r\n")
    assert end
    assert [body["path"] for _, _, body in replies(behind)] == ["/a", "/a"]


async def test_a_stream_goes_on_to_its_end_while_the_server_closes(autojump_clock: MockClock) -> None:
    closing = trio.Event()
    async with serving(route=Serving(two_parts).route, closing=closing) as client:
        await client.send_all(POST)
        await trio.sleep(0.5)
        closing.set()
        assert (await read_all(client)).endswith(b"3\r\ntwo\r\n0\r\n\r\n")
        assert trio.current_time() == 1


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"), [(ServerError("full", code="slow_down"), "slow_down"), (KeyError("x"), "server_error")]
)
async def test_an_error_before_the_first_part_is_a_whole_answer(
    error: Exception, code: str, autojump_clock: MockClock
) -> None:
    async def produce(send: Send) -> None:
        raise error

    async with serving(route=Serving(produce).route) as client:
        await client.send_all(POST + GET)
        await trio.testing.wait_all_tasks_blocked()
        failed, after = replies(bytes(await client.receive_some()))
    assert (failed[0], failed[2]["error"]["code"]) == (500, code)
    assert after[0] == 200


@pytest.mark.parametrize("error", [ServerError("full"), KeyError("x")])
async def test_an_error_after_it_cuts_the_answer_and_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def produce(send: Send) -> None:
        await send(b"part")
        raise error

    async with serving(route=Serving(produce).route) as client:
        await client.send_all(POST + GET)
        wire = await read_all(client)
    assert body_of(wire) == b"4\r\npart\r\n"  # and no last chunk
    assert "failed" in caplog.text


async def test_a_producer_may_give_up_on_a_peer_that_is_too_slow(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def produce(send: Send) -> None:
        await send(b"part")
        raise trio.TooSlowError

    async with serving(route=Serving(produce).route) as client:
        await client.send_all(POST + GET)
        wire = await read_all(client)
    assert body_of(wire) == b"4\r\npart\r\n"
    assert "failed" not in caplog.text


# --- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("wire", [POST, POST + GET, GET_STREAM])
async def test_a_client_that_leaves_cancels_the_work_at_once(
    wire: bytes, half: bool, whole: bool, autojump_clock: MockClock
) -> None:  # P63
    route = Serving(wait_long)
    async with serving(route=route.compute if whole else route.route) as client:
        await client.send_all(wire)
        await route.began.wait()
        await trio.sleep(1)
        await (client.send_eof() if half else client.aclose())
        await route.ended.wait()
        assert route.was_cancelled
        assert trio.current_time() == 1


async def test_a_client_that_is_gone_before_the_stream_begins_still_lets_it_clean_up(autojump_clock: MockClock) -> None:
    route = Serving(wait_long)
    async with serving(route=route.route) as client:
        await client.send_all(POST)
        await client.aclose()
        await route.ended.wait()
        assert trio.current_time() == 0


async def test_a_whole_answer_that_is_ready_is_sent_to_a_half_closed_client(autojump_clock: MockClock) -> None:
    async def produce(send: Send) -> None:
        pass

    async with serving(route=Serving(produce).compute) as client:
        await client.send_all(POST)
        await client.send_eof()
        assert replies(await read_all(client))[0][0] == 200


async def test_a_client_that_takes_nothing_cancels_the_stream(autojump_clock: MockClock) -> None:
    route = Serving(two_parts)
    client, server = lockstep_stream_pair()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, server, TIMES, route.route, no_upgrade)
            await client.send_all(POST)
    assert route.was_cancelled
    assert trio.current_time() == pytest.approx(TIMES.send_timeout_s)


async def test_a_cut_connection_cancels_a_route_that_reads_its_body(autojump_clock: MockClock) -> None:
    route = Serving(wait_long)
    async with serving(route=route.route) as client:
        await client.send_all(POST[:-1])
        await trio.testing.wait_all_tasks_blocked()
        await client.aclose()
    assert not route.began.is_set()
    assert trio.current_time() == 0


async def test_a_client_that_sends_far_ahead_is_served_but_no_longer_watched(autojump_clock: MockClock) -> None:
    route = Serving(two_parts)
    num_ahead = SMALL.max_head_bytes // len(GET) + 1
    async with serving(SMALL, route=route.route) as client:
        await client.send_all(POST)
        await route.began.wait()
        await client.send_all(GET * num_ahead)
        await trio.sleep(0.5)
        await client.send_eof()
        wire = await read_all(client)
    assert not route.was_cancelled
    assert len(replies(wire.partition(b"0\r\n\r\n")[2])) == num_ahead


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("whole", [False, True])
async def test_over_tcp_a_client_that_leaves_cancels_the_work(whole: bool, reset: bool) -> None:
    route = Serving(wait_long)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            client = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
            server = await listener.accept()
            handler = route.compute if whole else route.route
            nursery.start_soon(serve_http, server, Settings(), handler, no_upgrade)
            await client.send_all(POST)
            await route.began.wait()
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(client)
            await route.ended.wait()
            await listener.aclose()
    assert route.was_cancelled
