"""replay.py: what was read comes again, and the rest of the stream behind it."""

import pytest
import trio
from trio.testing import MockClock, check_one_way_stream, memory_stream_pair

from engine.server.replay import ReplayStream


@pytest.mark.parametrize("max_bytes", [None, 1, 3, 100])
async def test_replay_gives_the_received_bytes_first(max_bytes: int | None, autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    await client.send_all(b"later")
    await client.aclose()
    stream = ReplayStream(b"before ", server)
    parts = []
    while part := await stream.receive_some(max_bytes):
        assert max_bytes is None or len(part) <= max_bytes
        parts.append(bytes(part))
    assert b"".join(parts) == b"before later"


async def test_replay_is_a_stream_by_trios_own_checks() -> None:
    async def make() -> tuple[trio.abc.SendStream, trio.abc.ReceiveStream]:
        left, right = memory_stream_pair()
        return ReplayStream(b"", left), ReplayStream(b"", right)

    with trio.fail_after(30):
        await check_one_way_stream(make, None)
