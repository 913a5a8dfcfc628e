"""One sequence in the worker: its ids, the KV of a first part of them, and who waits for that KV.

A context that begins like another one takes over that one's KV. Where the other is still being computed, as when two
runs with the same instructions arrive together, it *follows*: it takes no part in steps until the common part is
there, so that this goes through the model once. Whatever ends the other one first lets its followers go with what is
there, so nobody waits for what does not come.
"""

from typing import Any, Final, Protocol

# Ids that stay pending until their job comes: it needs one to have a row to draw from, and one alone goes another way
# through attention than together with others, so that its last bits would tell when it was given.
KEPT_BACK: Final = 2


class KV(Protocol):
    """See `ragged.KV`."""

    @property
    def length(self) -> int: ...
    def crop(self, length: int) -> None: ...
    def copy(self, length: int) -> Any: ...


class Context:
    """One sequence. `is_early`: pending ids may be computed although no job asks for it; `num_early` were."""

    def __init__(self, kv: KV, ids: list[int]) -> None:
        self.kv = kv
        self.ids = ids
        self.is_early = False
        self.num_early = 0
        self.num_missed = 0  # ids whose KV was promised by whom it followed, and did not come
        self._promised: int | None = None
        self._followers: list[Context] = []

    @property
    def num_pending(self) -> int:
        return len(self.ids) - self.kv.length

    @property
    def num_held(self) -> int:
        """Ids whose KV is here, or comes from whom this one follows."""
        return self.kv.length if self._promised is None else self._promised

    def cut(self, length: int) -> None:
        """Forget ids from `length` on."""
        self._let_go(beyond=length)
        del self.ids[length:]
        self.crop(length)

    @property
    def num_ahead(self) -> int:
        """How many pending ids may be computed before a job comes."""
        count = self.num_pending - KEPT_BACK
        return count if count > 1 else 0

    def crop(self, length: int) -> None:
        """Forget the KV from `length` on."""
        self.num_early -= min(self.num_early, max(0, self.kv.length - length))
        self.kv.crop(length)
        if self._promised is not None:
            self._promised = min(self._promised, length)

    # --- following

    @property
    def is_following(self) -> bool:
        """Whether it waits for another one's KV."""
        return self._promised is not None

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    def fork(self, keep: int) -> "Context":
        """A context of the first `keep` ids. It follows this one, which must be on the move, until it has their KV."""
        twin = Context(self.kv.copy(0), self.ids[:keep])
        twin._promised = keep
        self._followers.append(twin)
        self.pass_on()
        return twin

    def pass_on(self) -> None:
        """Let those go whose part is computed: all of it but for what stays pending here, too."""
        for twin in self._followers[:]:
            if not self.is_following and (self.kv.length >= twin.num_held or not self.num_ahead):
                self._give(twin)

    def let_go(self) -> None:
        """It will not move on: those who follow it get what there is."""
        self._let_go(beyond=0)

    def _let_go(self, beyond: int) -> None:
        for twin in self._followers[:]:
            if twin.num_held > beyond:
                self._give(twin)

    def _give(self, twin: "Context") -> None:
        self._followers.remove(twin)
        twin._take(self.kv)

    def _take(self, kv: KV) -> None:
        assert self._promised is not None
        self.kv = kv.copy(self._promised)
        self.num_missed += self._promised - self.kv.length
        self._promised = None
        self.pass_on()
