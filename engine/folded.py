"""What a run's log keeps of what is past; the events are made again when a reader asks.

A paused run may wait for hours with tens of thousands of deltas behind it, which as events would take 200 bytes each.
A finished item is kept as its text and where the deltas were cut, the end of a step as its compressed JSON.
"""

import zlib
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
    """A finished item's events: what is the same for all of them, and the lengths of the deltas, a byte each.

    marks: where every 512th delta ends in the text.
    """

    scaffold: Scaffold
    text: str
    status: ItemStatus
    lengths: bytes | tuple[int, ...]
    marks: tuple[int, ...]

    def __len__(self) -> int:
        return self.scaffold.num_head + len(self.lengths) + self.scaffold.num_tail

    def item(self) -> Item:
        """The item itself."""
        return self.scaffold.item(self.text, self.status)

    def event(self, seq: int, first: int) -> ItemEvent:
        """The event with this sequence number, the same as it was sent; the item's first event has number `first`.

        Constant cost but for the text.
        """
        index = seq - first
        num_head, num_deltas = self.scaffold.num_head, len(self.lengths)
        if index < num_head:
            return self.scaffold.head(first)[index]
        index -= num_head
        if index < num_deltas:
            return self.scaffold.delta(seq, self._piece(index), index)
        tail = self.scaffold.tail(first + num_head + num_deltas, self.text, self.status)
        return tail[index - num_deltas]

    def _piece(self, index: int) -> str:
        mark = index // _STRIDE
        start = (self.marks[mark - 1] if mark else 0) + sum(self.lengths[mark * _STRIDE : index])
        return self.text[start : start + self.lengths[index]]


def fold_item(scaffold: Scaffold, pieces: list[str], status: ItemStatus) -> FoldedItem:
    """The folded form of an item that was streamed in these pieces."""
    lengths = list(map(len, pieces))
    # Deltas are tokens, hardly ever longer than a byte can say; one that is costs its item 8 bytes a delta.
    is_short = max(lengths, default=0) < 256
    return FoldedItem(
        scaffold,
        "".join(pieces),
        status,
        bytes(lengths) if is_short else tuple(lengths),
        tuple(islice(accumulate(lengths), _STRIDE - 1, None, _STRIDE)),
    )


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
