"""FrameStream alone: what is put goes out together, what is not put passes through."""

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair
from wsproto.frame_protocol import FrameProtocol, Opcode

from engine.server.frame_stream import FrameStream


async def test_frames_go_out_with_the_flush_and_in_order():
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    stream.put_text(b'{"a":1}')
    stream.put_ping()
    stream.put_text(b"b")
    assert stream.has_frames
    with trio.move_on_after(0):
        assert await theirs.receive_some() == b""
    with trio.fail_after(5):
        await stream.flush()
        assert not stream.has_frames
        await ours.send_eof()
        data = b"".join([part async for part in theirs])
    assert _frames(data) == [(Opcode.TEXT, '{"a":1}'), (Opcode.PING, b""), (Opcode.TEXT, "b")]


@pytest.mark.parametrize("num_bytes", [0, 125, 126, (1 << 16) - 1, 1 << 16, 1 << 20])
async def test_frames_of_every_length_are_read(num_bytes: int):
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    text = "é" * (num_bytes // 2) + "x" * (num_bytes % 2)
    stream.put_text(text.encode())
    await stream.flush()
    await ours.send_eof()
    assert _frames(b"".join([part async for part in theirs])) == [(Opcode.TEXT, text)]


def _frames(data: bytes) -> list[tuple[Opcode, str | bytes]]:
    """The whole frames as a client reads them."""
    peer = FrameProtocol(client=True, extensions=[])
    peer.receive_bytes(data)
    frames: list[tuple[Opcode, str | bytes]] = []
    payload = None
    for frame in peer.received_frames():
        payload = frame.payload if payload is None else payload + frame.payload
        if frame.frame_finished:
            frames.append((frame.opcode, bytes(payload) if isinstance(payload, bytearray) else payload))
            payload = None
    return frames


class Slow(trio.abc.SendStream):
    """Takes what it is sent at once, or in two halves with a pause between them."""

    def __init__(self, *, is_slow: bool) -> None:
        self.taken: list[bytes] = []
        self._is_slow = is_slow

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        half = len(data) // 2
        self.taken.append(bytes(data[:half]))
        if self._is_slow:
            await trio.sleep(1)
        self.taken.append(bytes(data[half:]))

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


async def test_flush_sends_before_anybody_else_runs():
    inner = Slow(is_slow=False)
    stream = FrameStream(inner)  # type: ignore[arg-type]  # only sends
    stream.put_text(b"abcd")
    with pytest.raises(StopIteration):  # done, without having let go of the scheduler
        stream.flush().send(None)
    assert b"".join(inner.taken) == b"\x81\x04abcd"


async def test_senders_wait_for_each_other(autojump_clock: MockClock):
    inner = Slow(is_slow=True)
    stream = FrameStream(inner)  # type: ignore[arg-type]  # only sends
    stream.put_text(b"abcd")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.flush)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stream.send_all, b"pong")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stream.send_all, b"ping")
    assert b"".join(inner.taken) == b"\x81\x04abcdpongping"


async def test_it_knows_when_the_last_bytes_came(autojump_clock: MockClock):
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    made_at = trio.current_time()
    await trio.sleep(3)
    assert stream.heard_at == made_at
    await theirs.send_all(b"x")
    await stream.receive_some()
    assert stream.heard_at == trio.current_time()


async def test_an_empty_flush_sends_nothing():
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    await stream.flush()
    await stream.send_all(b"pong")
    assert await theirs.receive_some() == b"pong"


async def test_reads_and_closing_pass_through():
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    await theirs.send_all(b"x")
    assert await stream.receive_some(10) == b"x"
    await stream.wait_send_all_might_not_block()
    await stream.aclose()
    assert await theirs.receive_some() == b""
