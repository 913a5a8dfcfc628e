"""What a run's log keeps of a finished item: its text and where the deltas were cut; the events are made again.

A paused run may wait for hours with tens of thousands of deltas behind it, which as events would take 200 bytes each.
"""

from array import array
from itertools import accumulate, islice

from engine.events import Event
from engine.items import Item, ItemStatus
from engine.scaffold import Scaffold

_STRIDE = 512  # deltas between two marks: finding one adds up 256 lengths on average, 2 µs beside the 30 of sending it


class FoldedItem:
    """A finished item's events: what is the same for all of them, and the lengths of the deltas, a byte each."""

    __slots__ = ("_lengths", "_marks", "first", "scaffold", "status", "text")

    def __init__(self, scaffold: Scaffold, first: int, pieces: list[str], status: ItemStatus) -> None:
        self.scaffold = scaffold
        self.first = first
        self.text = "".join(pieces)
        self.status = status
        lengths = list(map(len, pieces))
        # Deltas are tokens, hardly ever longer than a byte can say; one that is costs its item 4 bytes a delta.
        is_short = max(lengths, default=0) < 256
        self._lengths: bytes | array[int] = bytes(lengths) if is_short else array("I", lengths)
        # Where every 512th delta ends in the text.
        self._marks = tuple(islice(accumulate(lengths), _STRIDE - 1, None, _STRIDE))

    def __len__(self) -> int:
        return self.scaffold.num_head + len(self._lengths) + self.scaffold.num_tail

    def item(self) -> Item:
        """The item itself."""
        return self.scaffold.item(self.text, self.status)

    def event(self, seq: int) -> Event:
        """The event with this sequence number, the same as it was sent. Constant cost but for the text."""
        index = seq - self.first
        num_head, num_deltas = self.scaffold.num_head, len(self._lengths)
        if index < num_head:
            return self.scaffold.head(self.first)[index]
        index -= num_head
        if index < num_deltas:
            return self.scaffold.delta(seq, self._piece(index))
        tail = self.scaffold.tail(self.first + num_head + num_deltas, self.text, self.status)
        return tail[index - num_deltas]

    def _piece(self, index: int) -> str:
        mark = index // _STRIDE
        start = (self._marks[mark - 1] if mark else 0) + sum(self._lengths[mark * _STRIDE : index])
        return self.text[start : start + self._lengths[index]]
