"""Token trajectories: what a run's token log says, in the form that trainers take.

One object for each segment of a log, since a new segment is another context: a model that is trained or scored on it
sees exactly the ids that the sampled ones were drawn behind.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from engine.tokens import Span


class Step(msgspec.Struct, frozen=True):
    """`ids[start:sampled]` were given, then `ids[sampled:end]` drawn."""

    start: int
    sampled: int
    end: int


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A context in the form of three lists of equal length. Ids behind the last step were given and answered nothing.

    sampled: 1 for ids that the model drew (or its grammar forced), 0 for given ones: the mask of a loss. logprobs:
    natural logarithms, in the model's own distribution; None for given ids and where nobody asked for them.
    """

    response_id: str
    model: str
    status: str
    segment: int
    ids: list[int]
    sampled: list[int]
    logprobs: list[float | None]
    steps: list[Step]


def trajectories(response_id: str, model: str, status: str, spans: Iterable[Span]) -> Iterator[Trajectory]:
    """The trajectories of a token log, a segment each, oldest first. spans: the whole log, in order."""
    for segment, group in groupby(spans, lambda span: span.segment):
        found = Trajectory(
            response_id=response_id, model=model, status=status, segment=segment, ids=[], sampled=[], logprobs=[],
            steps=[],
        )  # fmt: skip
        for span in group:
            _add(found, span)
        yield found


def _add(to: Trajectory, span: Span) -> None:
    if span.offset != len(to.ids):
        raise ValueError(f"a span begins at {span.offset}, and there are {len(to.ids)} ids before it")
    end = span.offset + len(span.ids)
    if span.sampled:
        _add_step(to.steps, span.offset, end)
    to.ids.extend(span.ids)
    to.sampled.extend([int(span.sampled)] * len(span.ids))
    to.logprobs.extend([None] * len(span.ids) if span.logprobs is msgspec.UNSET else span.logprobs)


def _add_step(steps: list[Step], sampled: int, end: int) -> None:
    """Sampled spans without given ids between them are one turn of the model, so one step."""
    start = steps[-1].end if steps else 0
    if steps and start == sampled:
        last = steps.pop()
        start, sampled = last.start, last.sampled
    steps.append(Step(start, sampled, end))
