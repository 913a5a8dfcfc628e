"""The stream under an HTTP connection: a peer that is gone is one exception, and every send has its deadline."""

from contextlib import suppress
from typing import Final

import trio

from engine.settings import Settings

_CHUNK_BYTES: Final = 64 << 10  # trio's own default; smaller costs time on large bodies
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class PeerGone(Exception):
    """The peer closed the connection, cut it, or takes nothing more. There is nobody to tell."""


class Wire:
    """Moves bytes; raises nothing of the stream's own."""

    def __init__(self, stream: trio.abc.Stream, settings: Settings) -> None:
        self.stream = stream
        self._settings = settings

    async def receive(self) -> bytes:
        """The next bytes, none when the peer has ended its side. Raises PeerGone."""
        try:
            return bytes(await self.stream.receive_some(_CHUNK_BYTES))
        except _GONE as error:
            raise PeerGone from error

    async def receive_unless(self, closing: trio.Event) -> bytes:
        """As `receive`, but nothing if the peer is gone or `closing` is set."""
        data = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, closing, nursery.cancel_scope)
            with suppress(PeerGone):
                data = await self.receive()
            nursery.cancel_scope.cancel("bytes came")
        return data

    async def send_all(self, data: bytes) -> None:
        """Raises PeerGone, also when the peer takes nothing for `send_timeout_s`; the stream is of no use then."""
        try:
            with trio.fail_after(self._settings.send_timeout_s):
                await self.stream.send_all(data)
        except (*_GONE, trio.TooSlowError) as error:
            raise PeerGone from error

    async def linger(self) -> None:
        """Say that nothing more comes, and read on until the peer closes too or `linger_s` is over."""
        with suppress(*_GONE), trio.move_on_after(self._settings.linger_s):
            if isinstance(self.stream, trio.abc.HalfCloseableStream):
                await self.stream.send_eof()
            while await self.stream.receive_some(_CHUNK_BYTES):
                pass

    async def aclose(self) -> None:
        """Close the stream."""
        with suppress(*_GONE):  # an SSLStream says goodbye first and may find nobody
            await self.stream.aclose()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel("the server closes")
