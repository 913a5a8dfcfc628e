"""The simulated network: when bytes arrive, what is counted, and TLS on top of it."""

from functools import partial

import pytest
import trio

from engine.compare.link import Direction, Link, Traffic, carry_both, start_proxy
from engine.compare.tls import make_contexts, start_terminator, wrap


@pytest.mark.parametrize(
    ("delay_s", "bytes_per_s", "opened_at", "sent", "arrivals"),
    [
        (0, 0, 0, [(1, 10), (2, 10)], [1, 2]),
        (0.5, 0, 0, [(1, 10), (2, 10)], [1.5, 2.5]),
        (0.5, 0, 3, [(1, 10), (4, 10)], [3.5, 4.5]),  # the connection was not open before
        (0.5, 10, 0, [(1, 10)], [2.5]),
        (0.5, 10, 0, [(1, 10), (1, 20)], [2.5, 4.5]),  # one after the other
        (0.5, 10, 0, [(1, 10), (9, 10)], [2.5, 10.5]),  # the line was free again
    ],
)
def test_bytes_arrive_when_the_line_has_carried_them(delay_s, bytes_per_s, opened_at, sent, arrivals) -> None:
    direction = Direction(delay_s, bytes_per_s, opened_at)
    assert [direction.arrival(now, num_bytes) for now, num_bytes in sent] == arrivals


async def test_a_request_takes_a_round_trip_and_both_ways_are_counted(autojump_clock) -> None:
    client, near = trio.testing.memory_stream_pair()
    far, server = trio.testing.memory_stream_pair()
    traffic = Traffic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_both, near, far, Direction(1, 0, 0), Direction(2, 0, 0), traffic)
        start = trio.current_time()
        await client.send_all(b"12345")
        assert await server.receive_some() == b"12345"
        assert trio.current_time() - start == pytest.approx(1)
        await server.send_all(b"123")
        assert await client.receive_some() == b"123"
        assert trio.current_time() - start == pytest.approx(3)
        await client.send_eof()
        assert await server.receive_some() == b""
        await server.send_eof()
        assert await client.receive_some() == b""
    assert (traffic.bytes_up, traffic.bytes_down) == (5, 3)


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def test_a_proxy_survives_a_client_that_is_gone_and_tls_goes_over_it() -> None:
    contexts = make_contexts()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        tls_port = await start_terminator(nursery, port, contexts.server)
        proxy = await start_proxy(nursery, tls_port, Link(0.002))
        for _ in range(2):
            secured = wrap(await trio.open_tcp_stream("127.0.0.1", proxy.port), contexts.client)
            with trio.fail_after(5):
                await secured.send_all(b"hello")
                assert await secured.receive_some() == b"hello"
            await trio.aclose_forcefully(secured)
        nursery.cancel_scope.cancel()
    assert proxy.traffic.num_connections == 2
    assert proxy.traffic.bytes_up > 2 * len(b"hello"), "the handshake is counted, too"
