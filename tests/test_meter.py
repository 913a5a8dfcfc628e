"""meter.py: when what is settled, and with which counts."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from engine.backends.base import RunSpec, StepSpec
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.errors import ServerError
from engine.items import Message
from engine.ledger import Ended, Segment
from engine.ledger_fake import MemoryLedger
from engine.meter import Meter
from engine.usage import Timing, Usage, count_usage

USAGE = count_usage(30, 4)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
async def sequence() -> ScriptSequence:
    backend = ScriptBackend([parse_scenario("model: test\nsteps:\n- text: one two three four five six")])
    sequence = backend.open_sequence(RunSpec(response_id="r", model="test"))
    sequence.commit(await sequence.prepare([Message(role="user", content="count, please")]))
    return sequence


def open_meter(ledger: MemoryLedger, sequence: ScriptSequence, **options: Any) -> Meter:
    bill = ledger.open_bill("r", "ann", "test", 0, 0.0)
    return Meter(bill, ledger, sequence, **({"num_before": 0, "waits": False} | options))


def counts(segment: Segment) -> tuple[str, int, int, int]:
    return segment.reason, segment.input_tokens, segment.cached_tokens, segment.output_tokens


async def test_step_is_settled_with_its_usage_and_tells_what_that_took(
    ledger: MemoryLedger, sequence: ScriptSequence
) -> None:
    meter = open_meter(ledger, sequence)
    meter.step_started()
    timing = await meter.settle("stop", USAGE, Timing(prefill_ms=2))
    meter.end("completed")
    assert (timing.prefill_ms, 0 < timing.ledger_ms < 1000) == (2, True)
    assert [counts(segment) for segment in ledger.segments] == [("stop", 30, 0, 4)]
    assert isinstance(ledger.records[-1], Ended)
    assert ledger.records[-1].status == "completed"


@pytest.mark.parametrize("num_before", [0, 3])
async def test_step_that_is_cut_is_settled_with_what_is_known(
    ledger: MemoryLedger, sequence: ScriptSequence, num_before: int
) -> None:
    meter = open_meter(ledger, sequence, num_before=num_before)
    sequence.start_step(StepSpec())
    meter.step_started()
    num_input = sequence.num_context_tokens
    await sequence.next_deltas()
    sequence.cancel_step()
    meter.end("incomplete")
    assert [counts(segment) for segment in ledger.segments] == [("cut", num_input, num_before, 1)]


async def test_what_was_there_before_a_cut_step_is_taken_for_cached(
    ledger: MemoryLedger, sequence: ScriptSequence
) -> None:
    meter = open_meter(ledger, sequence)
    num_before = sequence.num_context_tokens
    await meter.settle("stop", USAGE, Timing())
    sequence.commit(await sequence.prepare([Message(role="user", content="and on")]))
    meter.step_started()
    meter.end("incomplete")
    assert counts(ledger.segments[-1]) == ("cut", sequence.num_context_tokens, num_before, 0)


async def test_nothing_is_cached_of_a_context_that_was_replaced(ledger: MemoryLedger, sequence: ScriptSequence) -> None:
    meter = open_meter(ledger, sequence, num_before=5)
    meter.context_replaced()
    meter.step_started()
    meter.end("incomplete")
    assert counts(ledger.segments[-1]) == ("cut", sequence.num_context_tokens, 0, 0)


async def test_it_waits_for_the_disk_only_when_told(ledger: MemoryLedger, sequence: ScriptSequence) -> None:
    """P106: a step's end, and the step after it, wait for the disk only where the setting says so."""
    ledger.durable = trio.Event()
    await open_meter(ledger, sequence).settle("stop", USAGE, Timing())
    settled: list[Timing] = []

    async def settle(meter: Meter) -> None:
        settled.append(await meter.settle("stop", USAGE, Timing()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, open_meter(ledger, sequence, waits=True))
        await wait_all_tasks_blocked()
        assert (len(ledger.segments), settled) == (2, [])  # it is written, and not yet on disk
        ledger.durable.set()
    assert len(settled) == 1


async def test_disk_that_fails_holds_up_nobody(ledger: MemoryLedger, sequence: ScriptSequence) -> None:
    async def fail() -> None:
        raise ServerError("The ledger failed.")

    ledger.wait_durable = fail  # type: ignore[method-assign]
    assert await open_meter(ledger, sequence, waits=True).settle("stop", Usage(), Timing())
