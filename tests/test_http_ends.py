"""How an HTTP connection ends: deadlines, peers that leave, a server that closes, and the hand-off of an upgrade."""

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    MockClock,
    lockstep_stream_pair,
    memory_stream_pair,
)
from trio_websocket import wrap_client_stream, wrap_server_stream

from engine.server.access import Admission
from engine.server.http import serve_http
from engine.server.replay import ReplayStream
from engine.settings import Settings
from tests.http_peer import (
    EXPECT,
    GET,
    HANDSHAKE,
    POST,
    SMALL,
    TIMES,
    echo,
    no_upgrade,
    posting,
    read_all,
    real_routes,
    replies,
    serving,
)

# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 10])
async def test_the_first_head_must_be_whole_in_time(cut: int, autojump_clock: MockClock) -> None:
    async with serving() as client:
        await trio.sleep(4)
        await client.send_all(GET[:cut])
        wire = await client.receive_some()
        assert trio.current_time() == pytest.approx(TIMES.head_timeout_s)  # from connecting
    if cut == 0:
        assert wire == b""  # nothing was asked, so nothing is answered
    else:
        ((status, headers, body),) = replies(bytes(wire))
        assert (status, body["error"]["code"], headers["connection"]) == (408, "request_timeout", "close")


async def test_a_later_head_must_be_whole_in_time_from_its_first_byte(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(GET)
        await client.receive_some()
        await trio.sleep(50)
        await client.send_all(GET[:10])
        ((status, _, _),) = replies(bytes(await client.receive_some()))
        assert status == 408
        assert trio.current_time() == pytest.approx(50 + TIMES.head_timeout_s)


async def test_bytes_that_trickle_in_do_not_move_the_deadline(autojump_clock: MockClock) -> None:
    async with serving() as client:
        for byte in GET[:9]:
            await client.send_all(bytes([byte]))
            await trio.sleep(1)
        ((status, _, _),) = replies(bytes(await client.receive_some()))
        assert status == 408
        assert trio.current_time() == pytest.approx(TIMES.head_timeout_s)


async def test_an_idle_connection_is_closed_without_a_word(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(GET)
        assert await client.receive_some() != b""
        assert await client.receive_some() == b""
        assert trio.current_time() == pytest.approx(TIMES.http_idle_s)


async def test_a_body_must_be_whole_in_time(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(POST[:-1])
        ((status, headers, body),) = replies(bytes(await client.receive_some()))
        assert (status, body["error"]["code"], headers["connection"]) == (408, "request_timeout", "close")
        assert trio.current_time() == pytest.approx(TIMES.body_timeout_s)


async def test_a_client_that_takes_nothing_is_dropped(autojump_clock: MockClock) -> None:
    client, server = lockstep_stream_pair()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, server, TIMES, echo, no_upgrade)
            await client.send_all(GET)
    assert trio.current_time() == pytest.approx(TIMES.send_timeout_s)


async def test_after_a_refusal_the_server_reads_on_for_a_while(autojump_clock: MockClock) -> None:
    async with serving(SMALL) as client:
        await client.send_all(posting(21))
        ((status, _, _),) = replies(await read_all(client))  # half-closed: the answer ends at once
        assert status == 413
        assert trio.current_time() == 0
        await trio.sleep(SMALL.linger_s / 2)
        await client.send_all(b"more")
        await trio.sleep(SMALL.linger_s)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"too late")


async def test_a_refused_client_that_sends_without_end_is_cut(autojump_clock: MockClock) -> None:
    async with serving(SMALL) as client:
        await client.send_all(posting(21))
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.send_all(b"more")
                await trio.sleep(0.1)
        assert trio.current_time() == pytest.approx(SMALL.linger_s, abs=0.11)


# --- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [b"", GET[:10], GET, POST[:-1], EXPECT, b"nonsense\r\n\r\n"])
async def test_a_client_may_leave_at_any_time(wire: bytes, autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(wire)
        await client.aclose()  # both ways, so that answers break


@pytest.mark.parametrize("error", [trio.BrokenResourceError, trio.ClosedResourceError])
@pytest.mark.parametrize("wire", [b"", GET[:10], GET, POST[:-1]])
async def test_a_cut_connection_ends_silently(wire: bytes, error: type[Exception], autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise error

    receive, send = MemoryReceiveStream(), MemorySendStream(send_all_hook=fail)
    receive.put_data(wire)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, trio.StapledStream(send, receive), TIMES, echo, no_upgrade)
            await trio.testing.wait_all_tasks_blocked()
            receive.close()


async def test_a_stream_that_cannot_half_close_is_served_too(autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http, ReplayStream(b"nonsense\r\n\r\n", server), TIMES, echo, no_upgrade)
        with trio.fail_after(TIMES.linger_s + 1):
            ((status, _, _),) = replies(await read_all(client))
    assert status == 400


async def test_a_refusal_reaches_a_client_with_unread_bytes_over_tcp() -> None:
    """The kernel would answer them with RST and drop the answer, were it not for the linger."""
    settings = Settings(max_body_bytes=10)
    body = b"x" * 3_000_000
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            client = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
            server = await listener.accept()
            nursery.start_soon(serve_http, server, settings, echo, no_upgrade)
            await client.send_all(POST.replace(b"5\r\n\r\nhello", b"%d\r\n\r\n" % len(body)) + body)
            ((status, _, _),) = replies(await read_all(client))
            assert status == 413
            await client.aclose()
            await listener.aclose()


# --- a server that closes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b"", GET])
async def test_an_idle_connection_ends_when_the_server_closes(before: bytes, autojump_clock: MockClock) -> None:
    closing = trio.Event()
    async with serving(closing=closing) as client:
        await client.send_all(before)
        await trio.sleep(1)
        closing.set()
        assert len(replies(await read_all(client))) == bool(before)
        assert trio.current_time() == 1


async def test_a_request_under_way_is_answered_with_a_close_when_the_server_closes(autojump_clock: MockClock) -> None:
    closing = trio.Event()
    async with serving(closing=closing) as client:
        await client.send_all(POST[:-1])
        await trio.sleep(1)
        closing.set()
        await client.send_all(POST[-1:] + GET)
        ((status, headers, body),) = replies(await read_all(client))
    assert (status, body["body"], headers["connection"]) == (200, "hello", "close")


# --- hand-off --------------------------------------------------------------------------------------------------------


class Upgraded:
    """An upgrade handler that keeps what it was given and everything it can read."""

    def __init__(self) -> None:
        self.admission: Admission | None = None
        self.wire = b""

    async def __call__(self, stream: trio.abc.Stream, admission: Admission) -> None:
        self.admission = admission
        self.wire = await read_all(stream)


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", POST])
async def test_the_hand_off_replays_exactly_what_came_since_the_request_began(
    before: bytes, autojump_clock: MockClock
) -> None:
    wire = before + HANDSHAKE + b"frames"
    for cut in range(1, len(wire)):
        upgraded = Upgraded()
        async with serving(route=real_routes, upgrade=upgraded) as client:
            await client.send_all(wire[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await client.send_all(wire[cut:])
            await client.send_eof()
            await read_all(client)
        assert upgraded.wire == HANDSHAKE + b"frames", f"cut at {cut}"
        assert upgraded.admission is not None
        assert (upgraded.admission.principal, upgraded.admission.lifecycle) == ("local", "chain")


async def test_the_stream_is_closed_after_the_upgrade_even_if_it_fails(autojump_clock: MockClock) -> None:
    async def broken(stream: trio.abc.Stream, admission: Admission) -> None:
        raise trio.BrokenResourceError("of the handler, so not ours to swallow")

    client, server = memory_stream_pair()
    await client.send_all(HANDSHAKE)
    with pytest.raises(trio.BrokenResourceError):
        await serve_http(server, TIMES, real_routes, broken)
    assert await client.receive_some() == b""


async def echo_message(stream: trio.abc.Stream, admission: Admission) -> None:
    """Send the first message back over trio-websocket, then close."""
    async with trio.open_nursery() as nursery:
        request = await wrap_server_stream(nursery, stream, receive_buffer_size=TIMES.max_head_bytes)
        websocket = await request.accept()
        await websocket.send_message(f"{admission.lifecycle}: {await websocket.get_message()}")
        await websocket.aclose()


@pytest.mark.parametrize("num_head_bytes", [0, 60_000])
@pytest.mark.parametrize("keeps_alive", [False, True])
async def test_a_real_websocket_client_shakes_hands_and_talks(
    num_head_bytes: int, keeps_alive: bool, autojump_clock: MockClock
) -> None:
    async with serving(route=real_routes, upgrade=echo_message) as client, trio.open_nursery() as nursery:
        if keeps_alive:
            await client.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert bytes(await client.receive_some()).startswith(b"HTTP/1.1 200 OK\r\n")
        padding = [(b"x-padding", b"x" * num_head_bytes)]  # longer than wsproto takes in pieces (16 KiB)
        websocket = await wrap_client_stream(nursery, client, "localhost", "/v1/responses", extra_headers=padding)
        await websocket.send_message("hello")
        assert await websocket.get_message() == "chain: hello"
        await websocket.aclose()


async def test_a_deadline_of_the_head_does_not_reach_into_the_upgrade(autojump_clock: MockClock) -> None:
    upgraded = Upgraded()
    async with serving(route=real_routes, upgrade=upgraded) as client:
        await client.send_all(HANDSHAKE)
        await trio.sleep(TIMES.http_idle_s + TIMES.head_timeout_s)
        await client.send_all(b"late")
    assert upgraded.wire == HANDSHAKE + b"late"


async def test_cancelling_closes_the_stream(autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    with trio.move_on_after(1):
        await serve_http(server, TIMES, echo, no_upgrade)
    assert await client.receive_some() == b""
