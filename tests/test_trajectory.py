"""trajectory.py: three lists of equal length that say what the log says, and steps that part it."""

import msgspec
import pytest
from hypothesis import given

from engine.tokens import Span, TokenLog
from engine.trajectory import Step, trajectories
from tests.test_tokens import MOVES, played


@given(MOVES)
def test_any_log_is_said_completely(moves):
    log = played(TokenLog(), moves)
    found = list(trajectories("r", "m", "completed", log.since(0)))
    assert [one.segment for one in found] == sorted({span.segment for span in log.since(0)})
    for one in found:
        spans = [span for span in log.since(0) if span.segment == one.segment]
        assert one.ids == list(log.segment_ids(one.segment)) == [id_ for span in spans for id_ in span.ids]
        assert one.sampled == [int(span.sampled) for span in spans for _ in span.ids]
        assert one.logprobs == [
            logprob
            for span in spans
            for logprob in ([None] * len(span.ids) if span.logprobs is msgspec.UNSET else span.logprobs)
        ]
        assert [step.start for step in one.steps] == [0, *(step.end for step in one.steps)][: len(one.steps)]
        by_steps = [
            mask for step in one.steps for mask in [0] * (step.sampled - step.start) + [1] * (step.end - step.sampled)
        ]
        assert one.sampled == by_steps + [0] * (len(one.ids) - len(by_steps))


def test_steps_are_parted_where_something_was_given():
    log = TokenLog()
    log.give([1, 2])
    log.sample([3], [-0.5])
    log.sample([4])  # the turn went on in another step, which nobody rated
    log.give([5])
    log.sample([6])
    log.give([7])
    (found,) = trajectories("r", "m", "in_progress", log.since(0))
    assert found.steps == [Step(0, 2, 4), Step(4, 5, 6)]
    assert found.logprobs == [None, None, -0.5, None, None, None, None]


def test_a_log_with_a_gap_is_refused():
    with pytest.raises(ValueError, match="begins at 1"):
        list(trajectories("r", "m", "completed", [Span(0, 1, False, [1])]))
