"""What the server knows of the KV in its worker: who holds how much, who must give way, whose may be taken over.

An entry is *running* while its sequence is sampled from, *paused* between steps, and *retired* when its run is over:
then it is a prefix that another run may adopt. When all together exceed the budget, retired entries go first, then
paused ones, the ones not used for longest first; a running one never. What goes is KV only: tokens stay in their logs.

Pure bookkeeping: the caller tells the worker.
"""

from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from engine.tokens import TokenLog

# Below this a copy and a frame are not worth it: a step of 16 tokens takes as long as one of a single token.
MIN_ADOPTED = 16


class Use(IntEnum):
    """In the order in which entries give way."""

    RETIRED = 0
    PAUSED = 1
    RUNNING = 2


class Entry(msgspec.Struct):
    """KV of the first `num_logged` ids of a segment of a token log, and of `ahead`, which may come to follow them."""

    tokens: TokenLog
    segment: int
    num_logged: int
    use: Use
    ahead: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_logged + len(self.ahead)

    @property
    def is_current(self) -> bool:
        """Whether the log still is at the segment that the worker knows."""
        return self.segment == self.tokens.segment

    @property
    def packed(self) -> bytes:
        """The ids of the log that the worker has, four bytes each."""
        return _packed(self.tokens.segment_ids(self.segment))[: 4 * self.num_logged]


class Match(NamedTuple):
    """`source` shares its first `keep` ids. `move`: it is of no use beyond that, so its KV need not be copied."""

    source: int
    keep: int
    move: bool


class KVCache:
    """Entries by sequence number, the one not used for longest first."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: the budget over all entries."""
        self._max_tokens = max_tokens
        self._entries: dict[int, Entry] = {}
        self._num_tokens = 0
        self._lost: dict[int, int] = {}
        self._num_evicted = 0

    @property
    def num_tokens(self) -> int:
        """Tokens held by all entries."""
        return self._num_tokens

    @property
    def num_evicted(self) -> int:
        """Tokens whose KV gave way so far, of all kinds of entries."""
        return self._num_evicted

    def take_lost(self, seq: int) -> int:
        """Tokens of a sequence whose KV gave way since this was asked last."""
        return self._lost.pop(seq, 0)

    def forget(self, seq: int) -> None:
        """Nobody will ask any more what became of this sequence; its KV serves others until it gives way."""
        self._lost.pop(seq, None)
        self.mark(seq, Use.RETIRED)

    def set_budget(self, max_tokens: int) -> None:
        """Change the budget; `evict` says what follows from it."""
        self._max_tokens = max_tokens

    def held(self, seq: int, ahead: Sequence[int] = ()) -> int:
        """Ids of the sequence's present context, followed by `ahead`, that the worker has.

        After a restart those are what the two contexts have in common: instructions and tools, as a rule.
        """
        entry = self._entries.get(seq)
        if entry is None:
            return 0
        if not entry.is_current:
            return common_prefix(entry.packed, _packed(entry.tokens.context())) // 4
        if not entry.ahead:
            return entry.num_logged
        follows = array("I", [*entry.tokens.context_from(entry.num_logged), *ahead])
        return entry.num_logged + common_prefix(_packed(array("I", entry.ahead)), _packed(follows)) // 4

    def put(self, seq: int, tokens: TokenLog, num_tokens: int, use: Use, ahead: Sequence[int] = ()) -> None:
        """The worker now has the first `num_tokens` ids of `tokens`, and `ahead`; makes the entry the one used last."""
        self.drop(seq)
        self._entries[seq] = Entry(tokens, tokens.segment, num_tokens, use, ahead)
        self._num_tokens += num_tokens + len(ahead)

    def mark(self, seq: int, use: Use) -> None:
        """Change what an entry is used for; no entry is no error."""
        if entry := self._entries.pop(seq, None):
            entry.use = use
            self._entries[seq] = entry

    def drop(self, seq: int) -> None:
        """The worker has nothing of it any more."""
        if entry := self._entries.pop(seq, None):
            self._num_tokens -= entry.num_tokens

    def clear(self) -> None:
        """The worker died."""
        self._entries.clear()
        self._num_tokens = 0

    def evict(self) -> list[int]:
        """Drop entries until the rest fits, or only running ones are left; their sequence numbers."""
        dropped = []
        for seq in self._giving_way():
            if self._num_tokens <= self._max_tokens:
                break
            self.evict_one(seq)
            dropped.append(seq)
        return dropped

    def evict_one(self, seq: int) -> None:
        """Drop an entry and note how much its sequence loses."""
        if entry := self._entries.get(seq):
            self._num_evicted += entry.num_tokens
            if entry.use is not Use.RETIRED:
                self._lost[seq] = self._lost.get(seq, 0) + entry.num_tokens
            self.drop(seq)

    def _giving_way(self) -> list[int]:
        candidates = [(seq, entry.use) for seq, entry in self._entries.items() if entry.use is not Use.RUNNING]
        return [seq for seq, _ in sorted(candidates, key=lambda candidate: candidate[1])]

    def match(self, seq: int, tokens: TokenLog) -> Match | None:
        """The entry that shares the longest prefix with a context, if that is worth taking over.

        Two ids are left out: there must be one to sample from, and not it alone (see `context.KEPT_BACK`).
        """
        wanted = _packed(tokens.context())
        best: Match | None = None
        for source, entry in self._sources(seq):
            keep = min(common_prefix(wanted, entry.packed) // 4, len(tokens) - 2)
            if keep >= max(MIN_ADOPTED, best.keep + 1 if best else 0):
                # a retired context of which less than half is shared may serve others better than us
                best = Match(source, keep, move=entry.use is Use.RETIRED and 2 * keep >= entry.num_tokens)
        return best

    def _sources(self, seq: int) -> Iterator[tuple[int, Entry]]:
        return ((source, entry) for source, entry in self._entries.items() if source != seq)


def _packed(ids: Sequence[int]) -> bytes:
    """Four bytes an id."""
    return memoryview(ids).tobytes()  # type: ignore[arg-type]  # TokenLog hands out array("I")


def common_prefix(left: bytes, right: bytes) -> int:
    """Length of the longest common prefix, by halving: a handful of memcmp."""
    same, beyond = 0, min(len(left), len(right))
    if left[:beyond] == right[:beyond]:
        return beyond
    while beyond - same > 1:
        middle = (same + beyond) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            beyond = middle
    return same
