"""The token log of a run: every id in order, which were given and which were sampled.

A run's context is this log. It only grows by appending; whatever rewrites the context (compaction, truncation, other
instructions or tools) starts a new segment and leaves the old ones readable.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec


class Span(msgspec.Struct, frozen=True):
    """Consecutive ids of one origin. `offset` counts from the start of its segment."""

    segment: int
    offset: int
    sampled: bool
    ids: list[int]
    logprobs: list[float] | msgspec.UnsetType = msgspec.UNSET


class TokenLog:
    """Ids (32 bit) of one run, 4 bytes each, with the borders between given and sampled stretches."""

    def __init__(self) -> None:
        self._ids = array("I")
        self._starts = array("I")  # index in _ids where a span begins; spans alternate as _sampled says
        self._sampled = bytearray()
        self._segments = array("I", [0])  # index in _ids where a segment begins

    def __len__(self) -> int:
        """Number of ids in the current segment: the length of the context."""
        return len(self._ids) - self._segments[-1]

    @property
    def total(self) -> int:
        """Number of ids over all segments; a position for `since`."""
        return len(self._ids)

    @property
    def segment(self) -> int:
        """Number of the current segment, from 0."""
        return len(self._segments) - 1

    def give(self, ids: Iterable[int]) -> None:
        """Append ids that were rendered from items."""
        self._append(ids, sampled=False)

    def sample(self, ids: Iterable[int]) -> None:
        """Append ids that the model drew (or that its grammar forced)."""
        self._append(ids, sampled=True)

    def _append(self, ids: Iterable[int], *, sampled: bool) -> None:
        at = len(self._ids)
        self._ids.extend(array("I", ids))  # by way of a copy: an id out of range must not leave those before it
        if len(self._ids) == at:
            return
        at_border = not self._starts or self._sampled[-1] != sampled or self._segments[-1] == at
        if at_border:
            self._starts.append(at)
            self._sampled.append(sampled)

    def start_segment(self) -> None:
        """Begin a new context; the next ids have offset 0."""
        if self._segments[-1] != len(self._ids):
            self._segments.append(len(self._ids))

    def extend(self, spans: Iterable[Span]) -> None:
        """Append what another log said, from its beginning or where this one ends; segments begin as they did."""
        for span in spans:
            if span.segment > self.segment:
                self.start_segment()
            self._append(span.ids, sampled=span.sampled)

    def copy(self) -> "TokenLog":
        """Another log that says the same: a few memcpy."""
        twin = TokenLog()
        twin._ids, twin._starts, twin._segments = self._ids[:], self._starts[:], self._segments[:]
        twin._sampled = self._sampled[:]
        return twin

    def context(self) -> Sequence[int]:
        """The ids of the current segment, oldest first. A copy: cost follows the context."""
        return self._ids[self._segments[-1] :]

    def context_from(self, offset: int) -> Sequence[int]:
        """The ids of the current segment from `offset` on: cost follows what is returned."""
        return self._ids[self._segments[-1] + offset :]

    def segment_ids(self, segment: int) -> Sequence[int]:
        """The ids of any segment, oldest first. A copy."""
        end = self._segments[segment + 1] if segment + 1 < len(self._segments) else len(self._ids)
        return self._ids[self._segments[segment] : end]

    def since(self, position: int) -> Iterator[Span]:
        """Spans from `position` (see `total`) to the end: cost follows what is returned."""
        index = len(self._starts)
        while index > 0 and self._starts[index - 1] > position:
            index -= 1
        index = max(index - 1, 0)
        for number in range(index, len(self._starts)):
            start = max(self._starts[number], position)
            end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._ids)
            if start < end:
                segment = self._segment_at(start)
                ids = self._ids[start:end].tolist()
                yield Span(segment, start - self._segments[segment], bool(self._sampled[number]), ids)

    def _segment_at(self, position: int) -> int:
        segment = len(self._segments) - 1
        while self._segments[segment] > position:
            segment -= 1
        return segment
