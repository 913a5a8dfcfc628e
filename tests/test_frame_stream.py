"""FrameStream alone: what is put goes out together, what is not put passes through."""

import trio
from trio.testing import memory_stream_pair
from wsproto.frame_protocol import FrameProtocol

from engine.server.frame_stream import FrameStream


async def test_frames_go_out_with_the_flush_and_in_order():
    ours, theirs = memory_stream_pair()
    stream = FrameStream(ours)
    stream.put_text(b'{"a":1}')
    stream.put_text("é".encode() * 70_000)
    with trio.move_on_after(0):
        assert await theirs.receive_some() == b""
    with trio.fail_after(5):
        await stream.flush()
        await ours.send_eof()
        data = b"".join([part async for part in theirs])
    peer = FrameProtocol(client=True, extensions=[])
    peer.receive_bytes(data)
    texts = ["".join(parts) for parts in _messages(peer)]
    assert texts == ['{"a":1}', "é" * 70_000]


def _messages(peer: FrameProtocol) -> list[list[str]]:
    messages: list[list[str]] = [[]]
    for frame in peer.received_frames():
        messages[-1].append(frame.payload)
        if frame.message_finished:
            messages.append([])
    return messages[:-1]


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
