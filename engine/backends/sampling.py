"""One token from one row of logits: penalties, temperature, nucleus, and a draw that can be repeated.

The draw is a function of (seed, position) and the logits alone, with no generator state to keep: a step that goes on
after its worker died, or after a pause, draws what it would have drawn. numpy only.
"""

from collections import Counter
from collections.abc import Iterable
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.backends.chance import Chance

Row = NDArray[np.float32]

# Sorting the whole vocabulary costs 3.5 ms at 49k; a draw falls outside the 64 likeliest ids only now and then.
_HEAD = 64
# At this temperature the likeliest id is drawn as at 0, and dividing by much less would leave no numbers to draw from.
_COLDEST = 1e-6


class NothingAllowed(ValueError):
    """No id may come here."""


class Sampler(msgspec.Struct, frozen=True):
    """How to draw. Temperature 0 is greedy; `top_p` keeps the smallest set of likeliest ids with that mass."""

    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def draw(self, row: Row, position: int) -> int:
        """The id for `position` of the context. row: [vocab] logits, -inf where an id may not come.

        Raises NothingAllowed.
        """
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            raise NothingAllowed("no token is allowed here")
        if self.temperature < _COLDEST or self.top_p == 0:
            return best
        return _draw_from(row / np.float32(self.temperature), self.top_p, uniform(self.seed, position))


class Penalties:
    """Counts of a job's own ids, and what they take off the logits (the API's presence and frequency penalty)."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._counts: Counter[int] = Counter()

    def count(self, ids: Iterable[int]) -> None:
        """Take note of ids that were sampled or forced."""
        self._counts.update(ids)

    def apply(self, row: Row) -> None:
        """Lower the logits of the counted ids in place."""
        if not self._counts:
            return
        ids = np.fromiter(self._counts.keys(), np.int64)
        counts = np.fromiter(self._counts.values(), np.float32)
        row[ids] -= np.float32(self._sampler.presence_penalty) + np.float32(self._sampler.frequency_penalty) * counts


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on the seed and the position alone. About 5 µs."""
    return Random(f"{seed}:{position}").random()


def log_prob(row: Row, token_id: int) -> float:
    """Log-probability of one id at temperature 1."""
    return float(row[token_id]) - _log_total(row)


def chance_of(row: Row, token_id: int, num_top: int) -> Chance:
    """What the row says of an id, and of the `num_top` likeliest. row: as the model made it."""
    total = _log_total(row)
    ids = _sorted_head(row, num_top) if num_top else ()
    return Chance(float(row[token_id]) - total, [(int(id_), float(row[id_]) - total) for id_ in ids])


def _draw_from(row: Row, top_p: float, u: float) -> int:
    """Invert the distribution function, likeliest id first: over the head, and only if need be over all."""
    total = _log_total(row)
    for count in (min(_HEAD, len(row)), len(row)):
        ids, reached = _likeliest(row, count, total)
        wanted = u * _nucleus_mass(reached, top_p)
        if wanted < reached[-1] and (top_p >= 1 or reached[-1] >= top_p):
            return int(ids[np.searchsorted(reached, wanted, side="right")])
    return int(ids[np.isfinite(row[ids])][-1])  # rounding: the sum over all ids stayed below what was wanted


def _nucleus_mass(reached: NDArray[np.float64], top_p: float) -> float:
    """Mass of the smallest set of likeliest ids that has `top_p`; 1 where the ids at hand do not reach it."""
    if top_p >= 1 or reached[-1] < top_p:
        return 1.0
    return float(reached[np.searchsorted(reached, top_p)])


def _likeliest(row: Row, count: int, total: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` likeliest ids, likeliest first, and the mass reached with each."""
    ids = _sorted_head(row, count)
    return ids, np.cumsum(np.exp(row[ids].astype(np.float64) - total))


def _sorted_head(row: Row, count: int) -> NDArray[np.int64]:
    """The `count` (at least one) likeliest ids, likeliest first."""
    ids = np.argpartition(row, -count)[-count:] if count < len(row) else np.arange(len(row))
    return ids[np.lexsort((ids, -row[ids]))]


def _log_total(row: Row) -> float:
    """log(sum(exp(row)))."""
    top = float(row.max())
    return top + float(np.log(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
