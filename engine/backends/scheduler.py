"""Which sequences take part in the worker's next step through the model, and with how many ids each.

Sequences that sample come first, with all they have: one id each as a rule, a few where a grammar forced some. What
is left of the step goes to prompts in equal shares, so that forty new tokens of one run do not wait for the eight
thousand of another; what a short one does not need, the others get. Only then comes text that was given early and that
nobody samples from yet.

How much a step may hold is a matter of time: a step is as long as others wait for their next token, and as long as a
stop, or another run's output, waits to get in. `Pace` learns from each step how long the next may be.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

# A step of 16 ids takes as long as one of a single id, so a smaller share would be for nothing.
FEWEST: Final = 16

# Chunks of 512 take 5 to 20 % more than one pass, of 256 no more than those; of 64, beside busy neighbours, twice that.
_CHUNK: Final = 256.0

# Two steps for what nearly fits into one take 60 ms more: the end of most prompts, and most resumes.
A_LITTLE_MORE: Final = 1.5


class Kind(IntEnum):
    """In the order of precedence."""

    SAMPLING = 0
    PROMPT = 1
    EARLY = 2


class Want(NamedTuple):
    """A sequence with `num_ids` ids (at least one) that the model has not seen, behind `num_past` that it has."""

    seq: int
    kind: Kind
    num_ids: int
    num_past: int = 0


class Part(NamedTuple):
    """What a sequence takes of a step: `num_ids` ids, which cost so much."""

    seq: int
    num_ids: int
    cost: float


class Pace:
    """How much fits into a step of `max_step_s`, in ids behind an empty context (the unit of cost).

    A step takes some time whatever is in it, and some for each unit. Where the first is most of what it may take, as
    beside busy neighbours, a step takes longer than it may: it does at least as much as it costs to begin.
    """

    def __init__(self, max_step_s: float, *, most: float = 4096, span: float = 1536) -> None:
        """most: that a step may hold however quick it is. span: so many ids before it make an id cost twice as much."""
        self._max_step_s = max_step_s
        self._most = most
        self._span = span
        # Two cores and the default model; right for others after a few steps.
        self._s_per_step = 0.025
        self._s_per_unit = 1e-3

    @property
    def budget(self) -> float:
        """What the next step may cost, sampling included. Never so little that its time would say nothing."""
        for_units_s = max(self._max_step_s - self._s_per_step, self._s_per_step)
        return max(min(self._most, 4.0 * FEWEST), min(self._most, for_units_s / self._s_per_unit))

    @property
    def budget_alone(self) -> float:
        """The same where nobody waits for a token: a chunk in which little is lost to beginning a step."""
        return max(self.budget, min(self._most, _CHUNK))

    def cost(self, num_ids: int, num_past: int) -> float:
        """Each id goes through the linear layers, and looks at all before it."""
        return num_ids * (1 + (num_past + num_ids / 2) / self._span)

    def affordable(self, cost: float, num_past: int) -> int:
        """How many ids, behind so many, cost no more than that."""
        each = 1 + num_past / self._span
        # The root of n * each + n² / (2 span) = cost; what `cost` said of n is enough for n, however it was rounded.
        return int(2 * cost / (each + (each * each + 2 * cost / self._span) ** 0.5) + 1e-6)

    def took(self, cost: float, seconds: float) -> None:
        """A step of this cost took so long."""
        if cost < FEWEST:
            self._s_per_step = _nearer(self._s_per_step, seconds)
        elif cost >= 2 * FEWEST:
            self._s_per_unit = _nearer(self._s_per_unit, max(seconds - self._s_per_step, seconds / 4) / cost)


def _nearer(known: float, seen: float) -> float:
    """An estimate moved towards what was seen; by not too much, since a neighbour's burst is soon over."""
    return 0.75 * known + 0.25 * min(max(seen, known / 4), 4 * known)


def plan(wants: Iterable[Want], pace: Pace) -> Iterator[Part]:
    """The next step. Sampling sequences take part however many there are; beside them some prompt always moves on."""
    by_kind: dict[Kind, list[Want]] = {kind: [] for kind in Kind}
    for want in wants:
        by_kind[want.kind].append(want)
    left = pace.budget if by_kind[Kind.SAMPLING] else _all_or_some(by_kind[Kind.PROMPT], pace)
    for want in by_kind[Kind.SAMPLING]:
        # Forced ids are few as a rule; a grammar that forces a whole text is held to a step's length like a prompt.
        count = min(want.num_ids, max(FEWEST, pace.affordable(pace.budget, want.num_past)))
        part = Part(want.seq, count, pace.cost(count, want.num_past))
        left -= part.cost
        yield part
    for kind in (Kind.PROMPT, Kind.EARLY):
        for part in _shared(by_kind[kind], max(left, _least(kind)), pace):
            left -= part.cost
            yield part


def _all_or_some(prompts: Iterable[Want], pace: Pace) -> float:
    """What a step may cost that nobody waits for: a little more than its budget where nothing is left over then."""
    everything = sum(pace.cost(want.num_ids, want.num_past) for want in prompts)
    return max(pace.budget_alone, everything if everything <= A_LITTLE_MORE * pace.budget_alone else 0)


def _least(kind: Kind) -> float:
    """What a kind gets of a step that is full already."""
    return FEWEST if kind is Kind.PROMPT else 0


def _shared(wants: Sequence[Want], cost: float, pace: Pace) -> list[Part]:
    """Equal shares of a cost, in the order of asking; those who need less leave the rest to the others.

    No share is smaller than FEWEST ids: where that does not go round, who came last waits. None leaves a single id, as
    that one would go another way through attention than together with others.
    """
    admitted = list(_admitted(wants, cost, pace))
    parts: dict[int, Part] = {}
    # Least need first: what each leaves over is then known before the next share is cut.
    for index, want in enumerate(sorted(admitted, key=lambda want: pace.cost(want.num_ids, want.num_past))):
        share = cost / (len(admitted) - index)
        count = min(want.num_ids, max(FEWEST, pace.affordable(share, want.num_past)))
        count -= want.num_ids - count == 1
        parts[want.seq] = Part(want.seq, count, pace.cost(count, want.num_past))
        cost -= parts[want.seq].cost
    return [parts[want.seq] for want in admitted]


def _admitted(wants: Sequence[Want], cost: float, pace: Pace) -> Iterator[Want]:
    """Those who get something; the first one always does, unless there is not even a least share."""
    if cost < FEWEST:
        return
    for index, want in enumerate(wants):
        cost -= pace.cost(min(want.num_ids, FEWEST), want.num_past)
        if index and cost < 0:
            return
        yield want
