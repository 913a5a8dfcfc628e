"""Content codings of request bodies: what a body was before gzip or zstd, in pieces of bounded size.

A few kilobytes can stand for gigabytes. So nothing is inflated at once: each piece is made when the caller asks for
it, and who counts the pieces can stop.
"""

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from engine.errors import RequestError
from engine.server.exchange import HttpError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PIECE_BYTES: Final = 1 << 20
_WINDOW_LOG: Final = 23  # RFC 9659: 8 MiB, so that a receiver knows how much memory a body can cost
_GZIP: Final = 16 + zlib.MAX_WBITS  # the window's size, with gzip's header and trailer around


class BodyDecoder(Protocol):
    """Undoes a content coding."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What the next bytes stand for, piece by piece; take all of them. Raises RequestError with status 400."""

    def finish(self) -> None:
        """The body has ended. Raises RequestError with status 400 if it should not have."""


def body_decoder(codings: Sequence[str]) -> BodyDecoder:
    """The decoder for a `Content-Encoding` of these tokens. Raises HttpError with status 415 for one not known."""
    match [coding for coding in codings if coding != "identity"]:
        case []:
            return _Plain()
        case ["gzip" | "x-gzip"]:
            return _Compressed("gzip", _GzipMember)
        case ["zstd"]:
            return _Compressed("zstd", _ZstdFrame)
        case _:
            message = f"Content-Encoding: {', '.join(codings)} is not decoded here; send gzip, zstd or identity."
            accepted = (("accept-encoding", "gzip, zstd, identity"),)
            raise HttpError(message, status=415, code="unsupported_content_encoding", headers=accepted)


class _Plain:
    def decode(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        pass


class _Part(Protocol):
    """One gzip member or zstd frame; a body is one or several of them."""

    is_over: bool
    has_more: bool  # without further input

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Up to `_PIECE_BYTES` of output, and what of the input is left. Raises zlib.error, zstd.ZstdError."""


class _GzipMember:
    has_more = False  # all output comes before the trailer is taken, so until then there is input left

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP)
        self.is_over = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        piece = self._inflate.decompress(data, _PIECE_BYTES)
        self.is_over = self._inflate.eof
        return piece, self._inflate.unused_data or self._inflate.unconsumed_tail


class _ZstdFrame:
    def __init__(self) -> None:
        self._decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
        self.is_over = self.has_more = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        piece = self._decompressor.decompress(data, _PIECE_BYTES)
        self.is_over = self._decompressor.eof
        self.has_more = not self.is_over and not self._decompressor.needs_input
        return piece, self._decompressor.unused_data if self.is_over else b""


class _Compressed:
    def __init__(self, name: str, open_part: Callable[[], _Part]) -> None:
        self._name = name
        self._open_part = open_part
        self._part: _Part | None = None  # None: between parts

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data or (self._part and self._part.has_more):
            piece, data = self._take(data)
            if piece:
                yield piece

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        part = self._part or self._open_part()
        try:
            taken = part.take(data)
        except (zlib.error, zstd.ZstdError) as error:
            raise self._broken("The body is not valid") from error
        self._part = None if part.is_over else part
        return taken

    def finish(self) -> None:
        if self._part is not None:
            raise self._broken("The body ends in the middle of its")

    def _broken(self, what: str) -> RequestError:
        return RequestError(f"{what} {self._name}, which its Content-Encoding says it is.", code="malformed_body")
