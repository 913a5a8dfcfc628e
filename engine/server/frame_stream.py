"""A stream under a WebSocket on which text frames go out together.

trio-websocket gives each message a lock, a turn of the scheduler and a system call, which costs more than everything
else that a token event needs. Here the writer puts all frames that are due and flushes them as one segment; nothing
waits for more to come, so no frame goes out later for it. trio-websocket still reads, and answers pings and closes,
through the same stream.
"""

import trio
from wsproto.frame_protocol import FrameProtocol


class FrameStream(trio.abc.Stream):
    """Passes everything through; frames that were put go out with `flush`."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self._frames = FrameProtocol(client=False, extensions=[])
        self._buffer = bytearray()
        # Pongs and closes come from tasks of trio-websocket's; they must not fall between two halves of a flush.
        self._lock = trio.Lock()

    def put_text(self, payload: bytes) -> None:
        """Add a text frame with this payload (UTF-8) to what the next flush sends."""
        self._buffer += self._frames.send_data(payload.decode(), fin=True)

    async def flush(self) -> None:
        """Send what was put. Raises as `send_all` does; a flush that was cancelled leaves the stream torn."""
        if self._buffer:
            data, self._buffer = self._buffer, bytearray()
            await self.send_all(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        async with self._lock:
            await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's."""
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        """Close the stream underneath."""
        await self._inner.aclose()
