"""A request's body in which one array only grows: each element is encoded and compressed once.

The body of a turn is `{fields…, "name": [elements…]}`, the array last. What comes before the elements changes from turn
to turn (limits, in msgpack the array's length), the elements never do. Without compression the body is the three parts
in a row. With gzip each part is a stretch of deflate blocks of its own that ends on a byte (a sync flush), which any
decoder reads as one stream. A stretch of elements refers back to the last of those before it, which precede it in every
body. Only the checksum has to be put together, since it runs over everything: the CRC of `A B` is the CRC of `A`,
shifted by the length of `B`, xor that of `B` (as zlib's `crc32_combine`).
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from engine.backends.remote.encoding import GZIP_LEVEL, Encoding

_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, no system
_WINDOW_BYTES: Final = 8_192  # kept to refer back to: deflate could look back further, which takes longer than it saves
_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31  # bits are reflected: the highest is x^0


class GrowingBody:
    """Bodies with a growing array. Cost of `extend` follows what is new, of `body` the fields (and one memcpy)."""

    def __init__(self, name: str, encoding: Encoding) -> None:
        """name: the field that holds the array."""
        self.encoding = encoding
        self._name = name
        self._count = 0
        self._grown = bytearray()  # compressed, where it is to be
        self._window = b""  # the end of it before compression, where that is needed
        self._num_bytes = 0  # before compression
        self._crc = 0

    def __len__(self) -> int:
        """How many elements the array has."""
        return self._count

    def extend(self, elements: Sequence[Any]) -> None:
        """Append elements to the array."""
        if not elements:
            return
        new = self._written(elements)
        if self.encoding.gzip:
            self._grown += _deflated(new, self._window)
            self._window = (self._window + new)[-_WINDOW_BYTES:]
        else:
            self._grown += new
        self._count += len(elements)
        self._num_bytes += len(new)
        self._crc = zlib.crc32(new, self._crc)

    def _written(self, elements: Sequence[Any]) -> bytes:
        array = self.encoding.write(elements)
        if self.encoding.msgpack:
            return array[_head_bytes(len(elements)) :]
        return (b"," if self._count else b"") + array[1:-1]

    def body(self, fields: dict[str, Any]) -> bytes:
        """The request's body with these other fields."""
        head, tail = self._head(fields), b"" if self.encoding.msgpack else b"]}"
        if not self.encoding.gzip:
            return b"".join((head, self._grown, tail))
        crc = zlib.crc32(tail, self._crc)
        num_bytes = self._num_bytes + len(tail)
        return b"".join((
            _GZIP_HEAD,
            _deflated(head),
            self._grown,
            _ended(tail),
            struct.pack("<LL", combined_crc(zlib.crc32(head), crc, num_bytes), (len(head) + num_bytes) & 0xFFFFFFFF),
        ))  # fmt: skip

    def _head(self, fields: dict[str, Any]) -> bytes:
        if self.encoding.msgpack:
            # A map that is too large for its first byte's count is written with two bytes more.
            whole = self.encoding.write(fields | {self._name: []})
            return whole[:-1] + b"\xdd" + struct.pack(">L", self._count)
        return self.encoding.write(fields | {self._name: []})[:-2]

    def copy(self) -> "GrowingBody":
        """Another body that grows by itself from here."""
        twin = GrowingBody(self._name, self.encoding)
        twin._count, twin._num_bytes, twin._crc = self._count, self._num_bytes, self._crc
        twin._grown, twin._window = self._grown[:], self._window
        return twin


def _head_bytes(count: int) -> int:
    """Bytes of a msgpack array's head."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _deflated(data: bytes, before: bytes = b"") -> bytes:
    """before: what precedes it in the stream."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=-15, zdict=before)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def _ended(data: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, wbits=-15)
    return packer.compress(data) + packer.flush()


# --- checksums ---------------------------------------------------------------------------------------------------


def combined_crc(first: int, second: int, num_bytes: int) -> int:
    """The CRC-32 of two stretches from their own; num_bytes: length of the second. Cost: its logarithm."""
    for power in _POWERS:
        if not num_bytes:
            break
        if num_bytes & 1:
            first = _product(power, first)
        num_bytes >>= 1
    return first ^ second


def _product(a: int, b: int) -> int:
    """`a · b` modulo the CRC's polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _powers() -> list[int]:
    """x^(8·2^k) for k from 0 to 47: a byte, two, four, …"""
    power = _ONE >> 1
    for _ in range(3):
        power = _product(power, power)
    found = [power]
    for _ in range(47):
        found.append(_product(found[-1], found[-1]))
    return found


_POWERS: Final = _powers()
