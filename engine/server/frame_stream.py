"""A stream under a WebSocket on which text frames go out together.

trio-websocket gives each message a lock, a turn of the scheduler and a system call, which costs more than everything
else that a token event needs. Here the writer puts all frames that are due and flushes them as one segment; nothing
waits for more to come, so no frame goes out later for it. trio-websocket still reads, and answers pings and closes,
through the same stream.
"""

from typing import Final

import trio

_TEXT: Final = 0x81  # RFC 6455 5.2: a whole message in one frame
_PING: Final = b"\x89\x00"  # without a payload


class FrameStream(trio.abc.Stream):
    """Passes everything through; frames that were put go out with `flush`. `heard_at`: when the last bytes came."""

    __slots__ = ("_buffer", "_inner", "_lock", "heard_at")

    def __init__(self, inner: trio.abc.Stream) -> None:
        self.heard_at = trio.current_time()
        self._inner = inner
        self._buffer = bytearray()
        # Pongs and closes come from tasks of trio-websocket's; they must not fall between two halves of a flush.
        self._lock = trio.Lock()

    def put_text(self, payload: bytes) -> None:
        """Add a text frame with this payload (UTF-8) to what the next flush sends."""
        self._buffer += _text_header(len(payload)) + payload

    def put_ping(self) -> None:
        """Add a ping to what the next flush sends."""
        self._buffer += _PING

    @property
    def has_frames(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._buffer)

    async def flush(self) -> None:
        """Send what was put. Raises as `send_all` does; a flush that was cancelled leaves the stream torn."""
        if self._buffer:
            data, self._buffer = self._buffer, bytearray()
            await self.send_all(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        try:
            self._lock.acquire_nowait()  # `acquire` takes a turn of the scheduler even when the lock is free
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            await self._inner.send_all(data)
        finally:
            self._lock.release()

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's."""
        data = await self._inner.receive_some(max_bytes)
        self.heard_at = trio.current_time()
        return data

    async def aclose(self) -> None:
        """Close the stream underneath."""
        await self._inner.aclose()


def _text_header(num_bytes: int) -> bytes:
    """The head of an unmasked text frame (RFC 6455 5.2); servers do not mask."""
    if num_bytes < 126:
        return bytes((_TEXT, num_bytes))
    if num_bytes < 1 << 16:
        return bytes((_TEXT, 126)) + num_bytes.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + num_bytes.to_bytes(8, "big")
