"""guard.py, lookout.py: a run's deltas and the verdicts on them, whichever comes first."""

import json
from collections.abc import Sequence as ListOf
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from engine.backends.base import Delta, RunSpec, Sequence, StepEnd, StepSpec, TextDelta
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.errors import EngineError, RequestError, ServerError
from engine.items import FunctionCall, FunctionCallOutput, Item, Message
from engine.safety.config import Action
from engine.safety.expression import parse_expression
from engine.safety.fake import ANYWHERE, FakeClassifier, FakeJudge
from engine.safety.guard import Guard
from engine.safety.lookout import Lookout
from engine.safety.patterns import Patterns
from engine.safety.policies import Classifier, Judged, PatternClassifier, Policies
from engine.safety.verdict import Finding
from engine.toolspec import decode_tools
from tests.served import FUNCTION

SCRIPT = """
model: test
pace: {ttft_ms: 100, tokens_per_second: 10}
steps: [{text: "One two sk-0123456789 three."}, {text: Next.}]
"""
BAD, GOOD = {"bad": 0.9}, {"bad": 0.1}
KEYS = PatternClassifier("keys", ANYWHERE, "block", Patterns([parse_expression("sk-[0-9]{10}")]))


def judged(action: Action = "block") -> Judged:
    return Judged("judge", ANYWHERE, action, "model", {"bad": 0.5}, 1000)


def user(text: str) -> Item:
    return Message(role="user", content=text)


class Guarded:
    """A guard over a scripted sequence, with a judge."""

    def __init__(
        self, *classifiers: Classifier, judges: ListOf[Judged] = (), fails_closed: bool = True, script: str = SCRIPT
    ) -> None:
        self.judge = FakeJudge()
        policies = Policies(classifiers, judges)
        self.lookout = Lookout(policies, {"model": self.judge}, timeout_s=5, fails_closed=fails_closed)
        self.notes: list[Finding] = []
        self.guard = self.lookout.open_guard(self.notes.append)
        backend = ScriptBackend([parse_scenario(script)])
        tools, _ = decode_tools([msgspec.Raw(json.dumps(FUNCTION).encode())], refuse_unknown=True)
        spec = RunSpec(response_id="resp", model=backend.models()[0].id, tools=tools)
        self.sequence: Sequence = backend.open_sequence(spec)

    async def begin(self, *items: Item) -> Guard:
        """Start a step with these items."""
        self.guard.took(await self.lookout.look_at(items))
        self.sequence.commit(await self.sequence.prepare(items))
        self.sequence.start_step(StepSpec())
        self.guard.begin_step(self.sequence)
        return self.guard

    async def some(self) -> list[Delta]:
        """The next deltas, at least one."""
        while not (deltas := await self.guard.next_deltas()):
            pass
        return deltas

    async def rest(self) -> list[Delta]:
        """All deltas up to the step's end."""
        deltas: list[Delta] = []
        while not (deltas and isinstance(deltas[-1], StepEnd)):
            deltas += await self.guard.next_deltas()
        return deltas


def text_of(deltas: ListOf[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def end_of(deltas: ListOf[Delta]) -> StepEnd:
    end = deltas[-1]
    assert isinstance(end, StepEnd)
    return end


async def test_what_is_clean_comes_as_it_would_from_the_sequence(autojump_clock: Any) -> None:
    guarded = Guarded()
    await guarded.begin(user("go"))
    deltas = await guarded.rest()
    assert text_of(deltas) == "One two sk-0123456789 three."
    assert end_of(deltas).reason == "stop"
    guard = await guarded.begin(user("on"))
    assert guard.num_tokens_shown is not None
    assert text_of(await guarded.rest()) == "Next."
    assert guard.num_tokens_shown is None


async def test_a_block_stops_sampling_and_says_what_it_took(autojump_clock: Any) -> None:
    guarded = Guarded(KEYS)
    await guarded.begin(user("go"))
    deltas = await guarded.rest()
    assert text_of(deltas) == "One two "
    end = end_of(deltas)
    assert (end.reason, end.timing.classify_ms > 0) == ("content_filter", True)
    assert 0 < end.usage.output_tokens < 10
    assert guarded.notes == [Finding("keys", "output", "blocked")]
    with pytest.raises(ValueError, match="no step"):
        guarded.sequence.interrupt()


async def test_the_tokens_of_a_step_that_was_stopped_are_not_shown(autojump_clock: Any) -> None:
    guarded = Guarded(KEYS)
    guard = await guarded.begin(user("go"))
    before = guarded.sequence.tokens.total
    await guarded.rest()
    assert guard.num_tokens_shown == before


# --- what the step is given --------------------------------------------------------------------------------------


async def test_the_model_samples_while_the_input_is_looked_at(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged()])
    await guarded.begin(user("go"))
    with trio.move_on_after(4.9) as waiting:  # the script takes less
        await guarded.some()
    assert waiting.cancelled_caught
    guarded.judge.answer(GOOD)
    before = trio.current_time()
    assert guarded.judge.open  # now about the output
    guarded.judge.answer(GOOD)
    assert text_of(await guarded.rest()) == "One two sk-0123456789 three."
    assert trio.current_time() == before


async def test_a_verdict_wakes_who_waits_for_the_model(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged()])
    await guarded.begin(user("go"))
    async with trio.open_nursery() as nursery:

        async def expect_refusal() -> None:
            with pytest.raises(RequestError, match="The input was refused by the policy 'judge'") as caught:
                await guarded.some()
            assert caught.value.code == "invalid_prompt"

        nursery.start_soon(expect_refusal)
        await wait_all_tasks_blocked()
        guarded.judge.answer(BAD)
    assert trio.current_time() < 0.1
    assert guarded.notes == [Finding("judge", "input", "blocked")]


async def test_an_early_output_is_the_next_steps_business(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged("flag"), judged()._replace(on=frozenset({"tool_output"}))])
    guard = await guarded.begin(user("go"))
    guarded.judge.answer(GOOD)
    guard.took(await guarded.lookout.look_at([FunctionCallOutput(call_id="c", output="early")]))
    guarded.judge.answer(BAD)
    guarded.judge.answer(BAD)

    with trio.move_on_after(4):
        assert text_of(await guarded.rest()) == ""  # it waits for the end, and nothing is flagged before
    guarded.judge.answer(GOOD)
    assert end_of(await guarded.rest()).reason == "stop"
    with pytest.raises(RequestError, match="A tool's output was refused"):
        await guarded.begin()
        await guarded.some()


async def test_who_samples_nothing_waits_for_the_verdict_all_the_same(autojump_clock: Any) -> None:
    for scores, error in ((GOOD, None), (BAD, RequestError), (None, ServerError)):
        guarded = Guarded(judges=[judged()])
        guarded.guard.took(await guarded.lookout.look_at([user("go")]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_settles, guarded.guard, error)
            await wait_all_tasks_blocked()
            guarded.judge.answer(scores)


async def _settles(guard: Guard, error: type[EngineError] | None) -> None:
    if error is None:
        await guard.wait_settled()
    else:
        with pytest.raises(error):
            await guard.wait_settled()


# --- judges that hang or are lost ----------------------------------------------------------------------------------


async def test_a_judge_that_hangs_ends_the_run_after_the_time_limit(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged()])
    await guarded.begin(user("go"))
    with pytest.raises(ServerError, match="could not be made"):
        await guarded.some()
    assert trio.current_time() == 5
    assert guarded.judge.given_up == ["go"]


async def test_or_is_passed_by_if_it_may_fail_open(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged()], fails_closed=False)
    await guarded.begin(user("go"))
    deltas = await guarded.rest()
    assert text_of(deltas) == "One two sk-0123456789 three."
    assert end_of(deltas).timing.classify_ms >= 0
    assert guarded.notes == [Finding("judge", "input", "failed"), Finding("judge", "output", "failed")]
    assert trio.current_time() == pytest.approx(5 + 0.9, abs=1)  # the output was asked about when it was whole


async def test_a_judge_that_is_lost_ends_the_run(autojump_clock: Any) -> None:
    guarded = Guarded(judges=[judged()])
    await guarded.begin(user("go"))
    guarded.judge.answer(None)
    with pytest.raises(ServerError):
        await guarded.some()


async def test_nobody_waits_for_answers_when_the_run_is_over() -> None:
    guarded = Guarded(judges=[judged()])
    guard = await guarded.begin(user("go"))
    guard.close()
    assert guarded.judge.withdrawn == ["go"]
    assert not guarded.judge.open


# --- interrupted ---------------------------------------------------------------------------------------------------


async def test_a_step_that_is_interrupted_tells_what_was_cleared_and_ends_when_all_is(autojump_clock: Any) -> None:
    guarded = Guarded(KEYS, judges=[judged()._replace(on=frozenset({"output"}))])
    guard = await guarded.begin(user("go"))
    with trio.move_on_after(0.25):
        await guarded.some()
    assert guard.can_interrupt
    assert guard.interrupt() == []
    assert not guard.can_interrupt
    assert list(guarded.judge.open.values()) == ["One two"]
    guarded.judge.answer(GOOD)
    deltas = await guarded.rest()
    assert text_of(deltas) == "One two"
    assert end_of(deltas).reason == "stop"


async def test_a_step_with_a_call_that_the_client_does_not_know_is_not_to_be_interrupted(autojump_clock: Any) -> None:
    script = """
model: test
pace: {ttft_ms: 100, tokens_per_second: 10}
steps: [{call: {name: look, arguments: {a: "long enough to take a while"}}}]
"""
    guarded = Guarded(KEYS, script=script)
    guard = await guarded.begin(user("go"))
    await guarded.some()
    with trio.move_on_after(0.3):
        await guarded.some()
    assert not guard.can_interrupt


# --- the lookout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"items": [user("a"), user("sk-0123456789")]}, "[1]"),
        ({"items": [FunctionCall(call_id="c", name="n", arguments=r'"\u0073k-0123456789"')]}, "[0]"),
        ({"items": [], "instructions": "Say sk-0123456789."}, "instructions"),
        ({"items": [user("a")], "earlier": [user("sk-0123456789")]}, None),
        ({"items": [user("x" * 65_530 + "sk-0123456789" + "x" * 200_000)]}, "[0]"),
    ],
)
async def test_what_is_blocked_at_once_is_refused_with_its_place(given: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        await Guarded(KEYS).lookout.look_at(**given)
    assert (caught.value.code, caught.value.status, caught.value.param) == ("invalid_prompt", 400, param)


async def test_what_is_flagged_is_found_and_let_in() -> None:
    flag = FakeClassifier(lambda text: "flag" if "odd" in text else "pass", action="flag")
    looked = await Guarded(KEYS, flag).lookout.look_at(
        [user("odd"), user("even"), FunctionCallOutput(call_id="c", output="odd")]
    )
    assert looked.findings == [Finding("fake", "input", "flagged"), Finding("fake", "tool_output", "flagged")]
    assert looked.took_ms > 0


async def test_a_long_text_lets_others_have_a_turn() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await Guarded(KEYS).lookout.look_at([user("word " * 100_000)])
        nursery.cancel_scope.cancel()
    assert turns >= 6


async def test_a_classifier_that_raises_refuses_the_input_or_lets_it_in() -> None:
    failing = partial(FakeClassifier, lambda text: 1 / 0)
    with pytest.raises(ServerError, match="could not be made"):
        await Guarded(failing()).lookout.look_at([user("a")])
    looked = await Guarded(failing(), fails_closed=False).lookout.look_at([user("a")])
    assert looked.findings == [Finding("fake", "input", "failed")]


async def test_a_judge_that_could_not_be_loaded_is_one_that_fails() -> None:
    for fails_closed in (True, False):
        lookout = Lookout(
            Policies((), [judged()]), {"model": FakeJudge("no such folder")}, timeout_s=5, fails_closed=fails_closed
        )
        assert not lookout.is_ready
        if fails_closed:
            with pytest.raises(ServerError):
                await lookout.look_at([user("a")])
        else:
            looked = await lookout.look_at([user("a")])
            assert (looked.findings, looked.questions) == ([Finding("judge", "input", "failed")], [])
    assert Guarded().lookout.is_ready
    await Guarded().lookout.wait_ready()
