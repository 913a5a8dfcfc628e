"""journal.py: what a record costs, and when it may be written. What is in it, test_revival.py reads."""

import random

import msgspec
import pytest

from engine.journal import Journal, StepRecord, encode_start
from engine.tokens import TokenLog
from tests.journaled import JournaledRun
from tests.machines import WEATHER, Run, call, output


def long_run(num_steps: int) -> JournaledRun:
    """A run of equal steps, which then ends."""
    words = random.Random(7)
    run = JournaledRun(tools=[WEATHER])
    for number in range(num_steps):
        run.feed(*(words.choice([" the", " of", "ing", " tool", ","]) for _ in range(300))).step(call())
        run.append(output(f"call_{number}", "x" * 100))
        run.response.take_new_items()
    return run.step("That was it.")


def test_record_costs_what_its_step_does_and_not_what_was_before() -> None:
    sizes = [len(record) for record in long_run(100).records[:-1]]
    assert max(sizes[10:]) < sizes[10] * 1.05


def test_record_of_an_ordinary_step_is_small() -> None:
    """300 deltas of 1,000 characters and a call: the text and a byte a delta, twice the terminal's counts, and ids."""
    assert len(long_run(2).records[1]) < 5000


def test_output_is_not_repeated_at_the_end() -> None:
    run = long_run(30)
    assert len(run.live[-1]) > 30_000
    assert len(run.records[-1]) < 3000


def test_tokens_that_are_not_to_be_seen_are_not_recorded_and_the_next_record_begins_with_what_follows() -> None:
    tokens, journal = TokenLog(), Journal(long_run(1).response, 0)
    tokens.give([1, 2])
    tokens.sample([3, 4])
    first = msgspec.json.decode(journal.record(tokens, 4, 2)[1], type=StepRecord)
    assert [span.ids for span in first.spans] == [[1, 2]]
    second = msgspec.json.decode(journal.record(tokens, 4)[1], type=StepRecord)
    assert [span.ids for span in second.spans] == [[3, 4]]


def test_first_record_is_written_before_the_run_starts() -> None:
    with pytest.raises(ValueError, match="has started"):
        encode_start(Run().response, "me")
