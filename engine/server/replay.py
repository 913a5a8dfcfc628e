"""A stream that is handed over as if nothing had been read from it yet."""

import trio


class ReplayStream(trio.abc.Stream):
    """A stream that first returns bytes which were already read from it, then reads on."""

    __slots__ = ("_inner", "_received")

    def __init__(self, received: bytes, inner: trio.abc.Stream) -> None:
        self._received = received
        self._inner = inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's. Raises trio.BrokenResourceError, trio.ClosedResourceError."""
        if not self._received:
            return await self._inner.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        end = len(self._received) if max_bytes is None else max_bytes
        part, self._received = self._received[:end], self._received[end:]
        return part

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream underneath."""
        await self._inner.aclose()
