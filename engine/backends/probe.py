"""What this machine computes quickest with, found out by trying for a fraction of a second.

A neighbour's burst of work must not decide, so each candidate is tried in turn several times and its best time counts,
and the first one, which is what is usually right, stays unless another is clearly quicker.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_ROUNDS: Final = 3


def quickest(candidates: Sequence[T], measure: Callable[[T], float], *, margin: float) -> T:
    """The candidate to take: the first, unless another is `margin` times as quick. measure: seconds."""
    if len(candidates) == 1:
        return candidates[0]
    times = [min(tries) for tries in zip(*([measure(one) for one in candidates] for _ in range(_ROUNDS)), strict=True)]
    best = min(range(len(candidates)), key=times.__getitem__)
    return candidates[best if times[best] * margin < times[0] else 0]


def thread_counts(cores: int) -> list[int]:
    """All cores, and the half of them: hyper-threads share what a matrix product needs."""
    return [cores] if cores == 1 else [cores, (cores + 1) // 2]
