"""bill.py: which records a run leaves, and what they do to the budget."""

import pytest

from engine.bill import RunBill
from engine.budget import Budget, Limits
from engine.ledger import Ended, QuotaExceeded, Record, Segment, Started, make_segment
from engine.usage import Timing, count_usage

NOW = 1_000_000.0
RUN = Started("resp_1", "ann", "toy", 1_000_000_000, 80)


@pytest.fixture
def budget() -> Budget:
    return Budget(Limits(0, 100), {}, NOW)


def test_run_leaves_a_start_its_segments_and_an_end(budget: Budget) -> None:
    written: list[Record] = []
    bill = RunBill(RUN, budget, written.append)
    bill.settle("stop", count_usage(30, 2), Timing(), NOW + 1)
    bill.settle("max_output_tokens", count_usage(40, 3, cached_tokens=32), Timing(), NOW + 2)
    bill.close("incomplete", NOW + 3)
    assert written == [
        RUN,
        make_segment(RUN, 0, "stop", count_usage(30, 2), Timing(), NOW + 1),
        make_segment(RUN, 1, "max_output_tokens", count_usage(40, 3, cached_tokens=32), Timing(), NOW + 2),
        Ended("resp_1", 1_000_003_000, "incomplete"),
    ]


def test_run_that_goes_on_numbers_on(budget: Budget) -> None:
    written: list[Record] = []
    RunBill(RUN, budget, written.append, first_segment=4).settle("stop", count_usage(1, 1), Timing(), NOW)
    assert isinstance(written[1], Segment)
    assert written[1].segment == 4


def test_refused_run_leaves_nothing(budget: Budget) -> None:
    written: list[Record] = []
    RunBill(RUN, budget, written.append)
    with pytest.raises(QuotaExceeded):
        RunBill(RUN, budget, written.append)
    assert written == [RUN]


def test_without_a_budget_nothing_is_refused() -> None:
    written: list[Record] = []
    bill = RunBill(RUN, None, written.append)
    bill.settle("stop", count_usage(30, 2), Timing(), NOW)
    bill.close("completed", NOW)
    assert len(written) == 3


def test_end_frees_what_the_run_did_not_use(budget: Budget) -> None:
    bill = RunBill(RUN, budget, lambda record: None)
    bill.settle("stop", count_usage(30, 2, cached_tokens=10), Timing(), NOW)
    bill.close("completed", NOW)
    budget.check("ann", 78, NOW)
    with pytest.raises(QuotaExceeded):
        budget.check("ann", 79, NOW)
