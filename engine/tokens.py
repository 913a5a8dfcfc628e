"""The token log of a run: every id in order, which were given and which were sampled.

A run's context is this log. It only grows by appending; whatever rewrites the context (compaction, truncation, other
instructions or tools) starts a new segment and leaves the old ones readable.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

import msgspec


class Span(msgspec.Struct, frozen=True):
    """Consecutive ids of one origin. `offset` counts from the start of its segment.

    logprobs: of sampled ids, one each, where they were asked for and the backend has them.
    """

    segment: int
    offset: int
    sampled: bool
    ids: list[int]
    logprobs: list[float] | msgspec.UnsetType = msgspec.UNSET


class _Kind(IntEnum):
    GIVEN = 0
    SAMPLED = 1
    RATED = 2  # sampled, with log-probabilities


class TokenLog:
    """Ids (32 bit) of one run, 4 bytes each, with the borders between given and sampled stretches."""

    __slots__ = ("_ids", "_kinds", "_logprobs", "_rated", "_segments", "_starts")  # one for every run

    def __init__(self) -> None:
        self._ids = array("I")
        self._starts = array("I")  # index in _ids where a span begins
        self._kinds = bytearray()  # of each span
        self._segments = array("I", [0])  # index in _ids where a segment begins
        self._logprobs = array("d")  # of the rated spans, one after the other
        self._rated = array("I")  # index in _logprobs for each span: how many there were before it

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
        self._append(array("I", ids), _Kind.GIVEN)

    def sample(self, ids: Iterable[int], logprobs: Sequence[float] | None = None) -> None:
        """Append ids that the model drew (or that its grammar forced), with a log-probability each or none at all."""
        new = array("I", ids)
        if logprobs is not None and len(logprobs) != len(new):
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(new)} ids")
        self._append(new, _Kind.SAMPLED if logprobs is None else _Kind.RATED)
        self._logprobs.extend(logprobs or ())

    def _append(self, ids: "array[int]", kind: _Kind) -> None:
        at = len(self._ids)
        if not ids:
            return
        self._ids.extend(ids)
        if not self._starts or self._kinds[-1] != kind or self._segments[-1] == at:
            self._starts.append(at)
            self._kinds.append(kind)
            self._rated.append(len(self._logprobs))

    def start_segment(self) -> None:
        """Begin a new context; the next ids have offset 0."""
        if self._segments[-1] != len(self._ids):
            self._segments.append(len(self._ids))

    def extend(self, spans: Iterable[Span]) -> None:
        """Append what another log said, from its beginning or where this one ends; segments begin as they did."""
        for span in spans:
            if span.segment > self.segment:
                self.start_segment()
            if span.sampled:
                self.sample(span.ids, None if span.logprobs is msgspec.UNSET else span.logprobs)
            else:
                self.give(span.ids)

    def copy(self) -> "TokenLog":
        """Another log that says the same: a few memcpy."""
        twin = TokenLog()
        twin._ids, twin._starts, twin._segments = self._ids[:], self._starts[:], self._segments[:]
        twin._kinds, twin._logprobs, twin._rated = self._kinds[:], self._logprobs[:], self._rated[:]
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

    def since(self, position: int, stop: int | None = None) -> Iterator[Span]:
        """Spans from `position` (see `total`) to `stop` or the end: cost follows what is returned."""
        stop = len(self._ids) if stop is None else stop
        index = len(self._starts)
        while index > 0 and self._starts[index - 1] > position:
            index -= 1
        index = max(index - 1, 0)
        for number in range(index, len(self._starts)):
            start = max(self._starts[number], position)
            end = min(self._starts[number + 1] if number + 1 < len(self._starts) else stop, stop)
            if start < end:
                yield self._span(number, start, end)

    def _span(self, number: int, start: int, end: int) -> Span:
        """From `start` to `end`, indices in _ids within the span with this number."""
        segment, kind = self._segment_at(start), self._kinds[number]
        logprobs: list[float] | msgspec.UnsetType = msgspec.UNSET
        if kind == _Kind.RATED:
            offset = self._rated[number] - self._starts[number]
            logprobs = self._logprobs[start + offset : end + offset].tolist()
        ids = self._ids[start:end].tolist()
        return Span(segment, start - self._segments[segment], kind != _Kind.GIVEN, ids, logprobs)

    def _segment_at(self, position: int) -> int:
        segment = len(self._segments) - 1
        while self._segments[segment] > position:
            segment -= 1
        return segment
