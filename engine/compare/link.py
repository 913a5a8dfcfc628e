"""A network between client and server on one machine: a proxy that delays, limits the bandwidth and counts bytes.

Every chunk is held until it would have arrived: when the direction's earlier bytes are through, after as long as its
own take at the bandwidth, and half a round trip later. The first bytes of a connection wait a whole round trip longer,
as a TCP handshake does. Loss, slow start and the queues of real networks are not there; a fresh connection with a long
request would suffer most from them.
"""

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

_CHUNK_BYTES: Final = 1 << 16

Carry = Callable[[trio.SocketStream, trio.SocketStream], Awaitable[None]]


@dataclass(frozen=True)
class Link:
    """up_bytes_per_s: from the client to the server; 0 is no limit. The other direction has none."""

    rtt_s: float = 0.0
    up_bytes_per_s: float = 0.0


class Direction:
    """When bytes that go one way arrive."""

    def __init__(self, delay_s: float, bytes_per_s: float, opened_at: float) -> None:
        """opened_at: bytes that come before that time are sent then."""
        self._delay_s = delay_s
        self._seconds_per_byte = 1 / bytes_per_s if bytes_per_s else 0.0
        self._free_at = opened_at

    def arrival(self, now: float, num_bytes: int) -> float:
        """When the last of these bytes, sent now, is there. Times are seconds of any one clock."""
        self._free_at = max(now, self._free_at) + num_bytes * self._seconds_per_byte
        return self._free_at + self._delay_s


@dataclass
class Traffic:
    """What went through a proxy, headers, framing and TLS included."""

    bytes_up: int = 0
    bytes_down: int = 0
    num_connections: int = 0


@dataclass(frozen=True)
class Proxy:
    """A port of this machine that leads to the server, over the link."""

    port: int
    traffic: Traffic


async def start_proxy(nursery: trio.Nursery, target_port: int, link: Link) -> Proxy:
    """A proxy before `target_port`, in this process, until the nursery is cancelled."""
    traffic = Traffic()

    async def carry(client: trio.abc.Stream, server: trio.abc.Stream) -> None:
        traffic.num_connections += 1
        opened_at = trio.current_time() + link.rtt_s
        up = Direction(link.rtt_s / 2, link.up_bytes_per_s, opened_at)
        await carry_both(client, server, up, Direction(link.rtt_s / 2, 0.0, opened_at), traffic)

    return Proxy(await start_forwarder(nursery, carry, target_port), traffic)


async def start_forwarder(nursery: trio.Nursery, carry: Carry, target_port: int) -> int:
    """A port of this machine; `carry(accepted, target)` is called for each connection, with a new one to the target."""

    async def serve(accepted: trio.SocketStream) -> None:
        async with accepted, await trio.open_tcp_stream("127.0.0.1", target_port) as target:
            with suppress_gone():
                await carry(accepted, target)

    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    port: int = listeners[0].socket.getsockname()[1]
    return port


@contextmanager
def suppress_gone() -> Iterator[None]:
    """A peer that leaves ends its connection and nothing else."""
    try:
        yield
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def carry_both(
    client: trio.abc.Stream, server: trio.abc.Stream, up: Direction, down: Direction, traffic: Traffic
) -> None:
    """Move bytes both ways until both sides have ended, or one is gone."""

    def count_up(num_bytes: int) -> None:
        traffic.bytes_up += num_bytes

    def count_down(num_bytes: int) -> None:
        traffic.bytes_down += num_bytes

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_carry, client, server, up, count_up)
        nursery.start_soon(_carry, server, client, down, count_down)


async def _carry(
    source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, direction: Direction, count: Callable[[int], None]
) -> None:
    """Read at once, so that what is on the way is here and not in a buffer of the system, whose size would limit it."""
    outgoing, arriving = trio.open_memory_channel[tuple[float, bytes]](math.inf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_deliver, arriving, sink)
        with outgoing:
            while data := bytes(await source.receive_some(_CHUNK_BYTES)):
                count(len(data))
                outgoing.send_nowait((direction.arrival(trio.current_time(), len(data)), data))


async def _deliver(arriving: trio.MemoryReceiveChannel[tuple[float, bytes]], sink: trio.abc.SendStream) -> None:
    async for due, data in arriving:
        await trio.sleep_until(due)
        await sink.send_all(data)
    if isinstance(sink, trio.abc.HalfCloseableStream):
        await sink.send_eof()
    else:
        await sink.aclose()
