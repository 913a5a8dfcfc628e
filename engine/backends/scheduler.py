"""Which sequences take part in the worker's next step through the model, and with how many ids each.

Sequences that sample come first, with all they have: one id each as a rule, a few where a grammar forced some. What
is left of the step's token budget goes to prompts in the order they came, and only then to text that was given early
and that nobody samples from yet. A step is thereby short enough for a stop, or for another's token, to get in between.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

# 256: a step of 0.25 s on two cores; chunks of 512 are 5 to 20 % slower in all than one pass, of 256 no slower.
CHUNK = 256


class Kind(IntEnum):
    """In the order of precedence."""

    SAMPLING = 0
    PROMPT = 1
    EARLY = 2


class Want(NamedTuple):
    """A sequence with `num_ids` ids (at least one) that the model has not seen."""

    seq: int
    kind: Kind
    num_ids: int


def plan(wants: Iterable[Want], chunk: int = CHUNK) -> Iterator[tuple[int, int]]:
    """Pairs of a sequence and the number of its ids to take, at most `chunk` in all but for sampling ones.

    Sampling sequences take part in every step, however many there are.
    """
    left = chunk
    for want in sorted(wants, key=lambda want: want.kind):  # stable: within a kind, first come first served
        limit = chunk if want.kind is Kind.SAMPLING else left
        if count := min(want.num_ids, limit):
            left = max(0, left - count)
            yield want.seq, count
