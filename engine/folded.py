"""What a run's log keeps of what is past; the events are made again when a reader asks.

A paused run may wait for hours with tens of thousands of deltas behind it, which as events would take 200 bytes each.
A finished item is kept as its text and where the deltas were cut, the end of a step as its compressed JSON.
"""

import zlib
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

import msgspec

from engine.events import Pause, PendingCall, ResponseDone, ResponseTokens, TimingReport, encode_event
from engine.item_events import ItemEvent
from engine.items import Item, ItemStatus
from engine.scaffold import Scaffold
from engine.usage import Timing, Usage

_STRIDE = 512  # deltas between two marks: finding one adds up 256 lengths on average, 2 µs beside the 30 of sending it


class FoldedItem(msgspec.Struct, frozen=True, gc=False, tag="folded"):
    """A finished item's events: what is the same for all of them, and the lengths of the deltas.

    lengths: half a byte each (`are_halves`), a byte each, or as they are. marks: where every 512th delta ends in the
    text.
    """

    scaffold: Scaffold
    text: str
    status: ItemStatus
    num_deltas: int
    lengths: bytes | tuple[int, ...]
    are_halves: bool
    marks: tuple[int, ...]

    def __len__(self) -> int:
        return self.scaffold.num_head + self.num_deltas + self.scaffold.num_tail

    def item(self) -> Item:
        """The item itself."""
        return self.scaffold.item(self.text, self.status)

    def event(self, seq: int, first: int) -> ItemEvent:
        """The event with this sequence number, the same as it was sent; the item's first event has number `first`.

        Constant cost but for the text.
        """
        index = seq - first
        num_head, num_deltas = self.scaffold.num_head, self.num_deltas
        if index < num_head:
            return self.scaffold.head(first)[index]
        index -= num_head
        if index < num_deltas:
            return self.scaffold.delta(seq, self._piece(index), index)
        tail = self.scaffold.tail(first + num_head + num_deltas, self.text, self.status)
        return tail[index - num_deltas]

    def _piece(self, index: int) -> str:
        mark = index // _STRIDE
        lengths = self._lengths(mark * _STRIDE, index + 1)
        start = (self.marks[mark - 1] if mark else 0) + sum(lengths[:-1])
        return self.text[start : start + lengths[-1]]

    def _lengths(self, start: int, end: int) -> Sequence[int]:
        """Those of the deltas `start` (an even number) to `end`."""
        if not (self.are_halves and isinstance(self.lengths, bytes)):
            return self.lengths[start:end]
        digits = self.lengths[start // 2 : (end + 1) // 2].hex().encode("ascii")
        return digits.translate(_FROM_HEX)[: end - start]


def fold_item(scaffold: Scaffold, pieces: list[str], status: ItemStatus) -> FoldedItem:
    """The folded form of an item that was streamed in these pieces."""
    lengths = list(map(len, pieces))
    longest = max(lengths, default=0)
    return FoldedItem(
        scaffold,
        "".join(pieces),
        status,
        len(lengths),
        # Deltas are tokens, hardly ever longer than half a byte can say.
        _halves(lengths) if longest < 16 else bytes(lengths) if longest < 256 else tuple(lengths),
        longest < 16,
        tuple(islice(accumulate(lengths), _STRIDE - 1, None, _STRIDE)),
    )


# Between numbers below 16 and their hexadecimal digits, which bytes.hex and bytes.fromhex pack two to a byte.
_DIGITS: Final = b"0123456789abcdef"
_TO_HEX: Final = _DIGITS.ljust(256, b"?")
_FROM_HEX: Final = bytes.maketrans(_DIGITS, bytes(range(16)))


def _halves(lengths: list[int]) -> bytes:
    digits = bytes(lengths).translate(_TO_HEX).decode("ascii")
    return bytes.fromhex(digits + "0" * (len(digits) % 2))


# --- the end of a step -------------------------------------------------------------------------------------------

PackableEvent = ResponseDone | ResponseTokens

# A `response.done` is 1.2 kB of names and 150 bytes of values. As a dictionary this one gives zlib all the names.
_EXAMPLE: Final = encode_event(
    ResponseDone(
        sequence_number=0,
        response=Pause(
            id="resp_",
            usage=Usage(),
            run_usage=Usage(),
            pending=[PendingCall("function_call", "", "fc_", "function_call_output", "call_")],
            timing=TimingReport(Timing(), Timing()),
        ),
    )
)
_WINDOW: Final = -12  # raw deflate with a window of 4 kB: the example and an event; takes 25 µs
_DECODER: Final = msgspec.json.Decoder(PackableEvent)


def pack_event(event: PackableEvent) -> bytes:
    """The event in about 200 bytes, where the object takes 1300."""
    packer = zlib.compressobj(wbits=_WINDOW, memLevel=5, zdict=_EXAMPLE)
    return packer.compress(encode_event(event)) + packer.flush()


def unpack_event(packed: bytes) -> PackableEvent:
    """The event that was packed, which encodes to the same bytes."""
    event: PackableEvent = _DECODER.decode(zlib.decompressobj(_WINDOW, _EXAMPLE).decompress(packed))
    return event
