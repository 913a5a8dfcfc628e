"""token_step.py: what a step says and reports, whoever ends it. Times are given."""

import pytest

from engine.backends.base import Delta, StepEnd, TextDelta
from engine.backends.chance import Chance
from engine.backends.constraint import Constraint
from engine.backends.frames import Finished
from engine.backends.token_step import Step
from engine.errors import BackendError
from engine.usage import Timing, count_usage
from tests.local_model import NumbersParser


class HoldingParser(NumbersParser):
    """Keeps the last id to itself until the end."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def feed(self, ids, chances=None) -> list[Delta]:
        *said, last = [*self._held, *ids]
        self._held = [last]
        return super().feed(said) if said else []

    def close(self, *, is_cut: bool) -> list[Delta]:
        return super().feed(self._held) if self._held else []


def step(*, ends_context: bool = False) -> Step:
    return Step(100, 50, HoldingParser(), None, given=7, ends_context=ends_context, began=1000.0)


class CallParser(NumbersParser):
    """Id 9 is a whole call."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.chances: list[Chance | None] = []

    def feed(self, ids, chances=None) -> list[Delta]:
        self.num_calls += list(ids).count(9)
        self.chances += chances or ()
        return super().feed(ids)


def single_call(constraint: Constraint | None = None, **options) -> Step:
    options = {"given": 0, "ends_context": False, "began": 0.0, "parallel_calls": False} | options
    return Step(100, 50, CallParser(), constraint, **options)


def finished(reason: str = "stop") -> Finished:
    return Finished(1, 1, reason, 93, 7, 1.0, 20.0, 300.0)  # type: ignore[arg-type]


def test_deltas_come_first_and_the_end_with_what_was_held_back():
    under_way = step()
    assert under_way.take() == []
    under_way.sampled([5, 6], None, 1020.0)
    under_way.finished(finished())
    assert under_way.is_over
    assert under_way.take() == [TextDelta("5 ")]
    timing = Timing(queue_ms=1, prefill_ms=20, sampling_ms=300, tokens_new=7, tokens_reused=93, tokens_prefilled=7)
    assert under_way.take() == [TextDelta("6 "), StepEnd("stop", count_usage(100, 2, cached_tokens=93), timing)]


@pytest.mark.parametrize(("ends_context", "reason"), [(False, "max_output_tokens"), (True, "context_length_exceeded")])
def test_a_limit_is_named_by_whose_it_was(ends_context, reason):
    under_way = step(ends_context=ends_context)
    under_way.finished(finished("length"))
    (end,) = under_way.take()
    assert isinstance(end, StepEnd) and end.reason == reason


def test_an_interrupted_step_accounts_for_what_was_seen():
    under_way = step()
    under_way.begun(93)
    under_way.sampled([5, 6, 7], None, 1020.0)
    under_way.sampled([8], None, 1030.0)
    timing = Timing(prefill_ms=20, sampling_ms=15, tokens_new=7, tokens_reused=93, tokens_prefilled=7)
    end = StepEnd("stop", count_usage(100, 4, cached_tokens=93), timing)
    assert under_way.interrupt(1035.0) == [TextDelta("5 6 7 "), TextDelta("8 "), end]


def test_without_a_token_nothing_is_known_to_have_been_prefilled():
    under_way = step()
    under_way.begun(200)
    (end,) = under_way.interrupt(1035.0)
    assert isinstance(end, StepEnd)
    assert end.timing == Timing(prefill_ms=35, tokens_new=7, tokens_reused=100)


def test_an_interrupt_after_the_end_takes_the_workers_account():
    under_way = step()
    under_way.sampled([5], None, 1020.0)
    under_way.finished(finished("length"))
    *_, end = under_way.interrupt(9999.0)
    assert isinstance(end, StepEnd)
    assert (end.reason, end.timing.sampling_ms) == ("stop", 300)


def test_a_failure_comes_after_what_was_said_before_it():
    under_way = step()
    under_way.sampled([5, 6], None, 1020.0)
    under_way.failed(BackendError("broken"))
    assert under_way.is_over
    assert under_way.take() == [TextDelta("5 ")]
    with pytest.raises(BackendError):
        under_way.take()
    with pytest.raises(BackendError):
        under_way.interrupt(1035.0)


def test_the_second_loss_is_the_last():
    under_way = step()
    assert [under_way.lost(), under_way.lost()] == [True, False]


FREE = [None, Constraint("", "on_trigger", 1)]


@pytest.mark.parametrize("constraint", FREE)
@pytest.mark.parametrize(("ids", "count"), [([5, 9, 6, 9], 2), ([5, 9], 2), ([9, 6], 1), ([5, 6], 2)])
def test_a_step_of_one_call_is_over_with_it(constraint, ids, count):
    under_way = single_call(constraint)
    under_way.begun(90)
    assert under_way.sampled([7], None, 10.0) == 1
    assert not under_way.is_over
    assert under_way.sampled(ids, None, 30.0) == count
    assert under_way.is_over == (9 in ids)
    assert "".join(delta.text for delta in under_way.take()) == "".join(f"{id_} " for id_ in [7, *ids[:count]])
    if under_way.is_over:
        (end,) = under_way.take()
        timing = Timing(prefill_ms=10, sampling_ms=20, tokens_reused=90, tokens_prefilled=10)
        assert end == StepEnd("stop", count_usage(100, 1 + count, cached_tokens=90), timing)


@pytest.mark.parametrize("under_way", [single_call(Constraint("")), single_call(parallel_calls=True)])
def test_where_a_grammar_counts_calls_or_nobody_does_the_worker_ends_the_step(under_way):
    assert under_way.sampled([9, 5, 9], None, 10.0) == 3
    assert not under_way.is_over


@pytest.mark.parametrize("parallel_calls", [True, False])
def test_the_parser_gets_chances_where_they_are_wanted(parallel_calls):
    parser, chances = CallParser(), [Chance(-1.0), Chance(-2.0)]
    under_way = Step(
        100, 50, parser, None, given=0, ends_context=False, began=0.0, top_logprobs=0, parallel_calls=parallel_calls
    )
    under_way.sampled([5, 6], chances, 10.0)
    under_way.take()
    assert parser.chances == chances


def test_thoughts_are_part_of_the_usage():
    class Thinker(NumbersParser):
        num_reasoning = 3

    step = Step(10, 9, Thinker(), None, given=0, ends_context=False, began=0.0)
    step.sampled([5, 6], None, 1.0)
    assert step.interrupt(2.0)[-1].usage.output_tokens_details.reasoning_tokens == 2  # not more than were drawn
    step = Step(10, 9, Thinker(), None, given=0, ends_context=False, began=0.0)
    step.sampled([5, 6, 7, 8], None, 1.0)
    assert step.interrupt(2.0)[-1].usage.output_tokens_details.reasoning_tokens == 3


def test_the_worker_is_not_seen_to_begin_while_it_takes_a_prompt_in():
    under_way = step()
    assert under_way.unseen_ms(finished()) == 0
    under_way.admitted(1000.0)
    under_way.sampled([5], None, 1250.0)  # the worker says 1 ms and 20
    assert under_way.unseen_ms(finished()) == 229
    assert step().unseen_ms(finished()) == 0
