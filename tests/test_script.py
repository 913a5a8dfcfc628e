"""The script backend: what a step gives and when, how it ends, and what it counts. Time is the mock clock's."""

import math
from collections.abc import Callable

import pytest
import trio

from engine import items
from engine.backends.base import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    Extension,
    ReasoningDelta,
    RunSpec,
    StepEnd,
    StepSpec,
    TextDelta,
    ToolChoice,
)
from engine.backends.scenario import parse_scenario, resolve_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.backends.script_context import EstimatedContext, estimate_tokens
from engine.backends.script_step import MAX_BATCH
from engine.backends.script_take import NO_LIMIT, Limit, take_step
from engine.content import ComputerScreenshot, InputImage
from engine.errors import BackendError, NotFound, RequestError
from engine.items import FunctionCallOutput, Message
from engine.toolspec import Tool
from engine.usage import count_usage

LOOK = Tool("function", "look")
GO = Message(role="user", content="go")


def opened(steps: str, *, more: str = "", **spec: object) -> ScriptSequence:
    """A sequence of a scenario with these steps, before its first input."""
    backend = ScriptBackend([parse_scenario(f"{more}\nsteps: [{steps}]", "test.yaml")])
    return backend.open_sequence(RunSpec(response_id="r", model="test", **spec))  # type: ignore[arg-type]


async def give(sequence: ScriptSequence, *given: items.Item) -> Extension:
    extension = await sequence.prepare(given)
    sequence.commit(extension)
    return extension


async def sample(sequence: ScriptSequence, step: StepSpec = StepSpec()) -> list[tuple[float, Delta]]:  # noqa: B008  # frozen
    """A whole step: each delta with the seconds since the step's start at which it came."""
    start, timed = trio.current_time(), []
    sequence.start_step(step)
    with trio.fail_after(1000):
        while not timed or not isinstance(timed[-1][1], StepEnd):
            batch = await sequence.next_deltas()
            assert 0 < len(batch) <= MAX_BATCH
            timed += [(trio.current_time() - start, delta) for delta in batch]
    return timed


async def first_step(steps: str, step: StepSpec = StepSpec(), **spec: object) -> list[Delta]:  # noqa: B008  # frozen
    sequence = opened(steps, **spec)
    await give(sequence, GO)
    return [delta for _, delta in await sample(sequence, step)]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def end_of(deltas: list[Delta]) -> StepEnd:
    assert isinstance(deltas[-1], StepEnd)
    return deltas[-1]


# --- the backend -------------------------------------------------------------------------------------------------


async def test_each_scenario_is_a_model_that_says_it_is_scripted():
    async with ScriptBackend([resolve_scenario("demo"), parse_scenario("steps: [{text: a}]", "b.yaml")]) as backend:
        assert [(model.id, model.owned_by) for model in backend.models()] == [
            ("script:demo", "script"),
            ("script:b", "script"),
        ]
        assert backend.is_ready
        for name in ("b", "script:b"):
            backend.open_sequence(RunSpec(response_id="r", model=name)).close()


def test_an_unknown_model_is_not_found():
    with pytest.raises(NotFound, match=r"'c' does not exist; this server plays script:demo\.") as error:
        ScriptBackend([resolve_scenario("demo")]).open_sequence(RunSpec(response_id="r", model="c"))
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("names", [[], ["demo", "demo"]])
def test_scenarios_need_different_names(names):
    with pytest.raises(ValueError, match="different model names"):
        ScriptBackend([resolve_scenario(name) for name in names])


# --- what a step gives -------------------------------------------------------------------------------------------


async def test_a_step_gives_its_parts_in_order():
    deltas = await first_step(
        "{reasoning: hm, text: I look., calls: [{name: look, arguments: {n: 1}}, {tool: first}]}", tools=[LOOK]
    )
    assert deltas[:-1] == [
        ReasoningDelta("hm"),
        TextDelta("I"),
        TextDelta(" look."),
        CallStart("function_call", "look"),
        CallDelta('{"n":'),
        CallDelta(" 1}"),
        CallEnd(),
        CallStart("function_call", "look"),
        CallDelta("{}"),
        CallEnd(),
    ]
    assert end_of(deltas).reason == "stop"


async def test_placeholders_bring_in_outputs():
    sequence = opened('{call: {tool: first}}, {text: "It is {last_output}; {turn}/{step}."}', tools=[LOOK])
    await give(sequence, GO)
    await sample(sequence)
    await give(sequence, FunctionCallOutput(call_id="c", output="sunny"))
    assert text([delta for _, delta in await sample(sequence)]) == "It is sunny; 1/2."


async def test_a_thousand_steps_cost_the_context_what_they_said():
    sequence = opened("{repeat: {times: 1000, steps: [{text: '{index}'}]}}")
    await give(sequence, GO)
    for number in range(1, 1001):
        assert text([delta for _, delta in await sample(sequence)]) == str(number)
        await give(sequence, GO)
    assert sequence.num_context_tokens == 1 + 1000 * 2
    assert (sequence.work.num_items, sequence.work.num_tokens) == (1001, 1001)


async def test_tool_choice_none_leaves_calls_out():
    deltas = await first_step("{text: a, call: {name: look}}", StepSpec(ToolChoice("none")), tools=[LOOK])
    assert deltas[:-1] == [TextDelta("a")]


@pytest.mark.parametrize(("scripted", "added"), [("{text: a}", 1), ("{text: a, call: {name: look}}", 0)])
async def test_tool_choice_required_adds_a_call_where_there_is_none(scripted, added):
    deltas = await first_step(scripted, StepSpec(ToolChoice("required")), tools=[LOOK])
    assert [type(delta) for delta in deltas[1:-1]] == [CallStart, CallDelta, CallEnd]


async def test_a_tool_that_the_client_lacks_fails_the_step_after_what_comes_before():
    sequence = opened("{text: a, call: {name: gone}}", tools=[LOOK])
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    assert await sequence.next_deltas() == [TextDelta("a")]
    with pytest.raises(BackendError, match=r"'gone' at steps\[0\]\.call, but the client offers look"):
        await sequence.next_deltas()


# --- when --------------------------------------------------------------------------------------------------------


async def test_deltas_come_at_the_pace_of_the_scenario(autojump_clock):
    sequence = opened("{text: a b c d}", more="pace: {ttft_ms: 300, tokens_per_second: 10}")
    await give(sequence, GO)
    timed = await sample(sequence)
    assert [time for time, _ in timed] == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.6])
    timing = end_of([delta for _, delta in timed]).timing
    assert (timing.prefill_ms, timing.sampling_ms) == pytest.approx((300, 300))


async def test_without_a_pace_no_time_passes_and_others_run_between_batches(autojump_clock):
    sequence = opened("{text: {tokens: 1000}}")
    await give(sequence, GO)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        timed = await sample(sequence)
        nursery.cancel_scope.cancel()
    assert len(timed) == 1001
    assert turns >= 1000 // MAX_BATCH
    assert [time for time, _ in timed] == [0] * 1001


async def test_the_first_delta_comes_alone_and_at_once():
    sequence = opened("{text: {tokens: 40}}")
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    with trio.CancelScope() as scope:
        scope.cancel()  # there is nothing to wait for, so nothing that could be cancelled
        assert len(await sequence.next_deltas()) == 1
        await sequence.next_deltas()
        pytest.fail("the second batch let nobody else run")


async def test_a_late_reader_catches_up_and_nothing_drifts(autojump_clock):
    sequence = opened("{text: {tokens: 30}, pace: {tokens_per_second: 10}}")
    await give(sequence, GO)
    start = trio.current_time()
    sequence.start_step(StepSpec())
    assert len(await sequence.next_deltas()) == 1
    await trio.sleep(1.05)
    assert len(await sequence.next_deltas()) == 10
    await trio.sleep(1.9)
    assert len(await sequence.next_deltas()) == MAX_BATCH
    assert len(await sequence.next_deltas()) == 3
    assert isinstance((await sequence.next_deltas())[0], StepEnd)
    assert trio.current_time() - start == pytest.approx(2.95)


async def test_delays_move_everything_behind_them(autojump_clock):
    sequence = opened("[{text: a, delay_ms: 500}, {text: b c, stall: 2}]", more="pace: {tokens_per_second: 10}")
    await give(sequence, GO)
    times = [time for time, _ in await sample(sequence)]
    assert times == pytest.approx([0, 0.6, 0.7, 2.7])


async def test_a_call_begins_with_its_first_token_and_ends_with_its_last(autojump_clock):
    sequence = opened(
        "{text: a, call: {name: look, arguments: {n: 1}}}", more="pace: {tokens_per_second: 1}", tools=[LOOK]
    )
    await give(sequence, GO)
    assert [time for time, _ in await sample(sequence)] == pytest.approx([0, 1, 1, 2, 2, 2])


async def test_an_empty_step_ends_after_its_time_to_first_token(autojump_clock):
    sequence = opened("{call: {name: look}, pace: {ttft_ms: 250}}", tools=[LOOK])
    await give(sequence, GO)
    (time, end), *rest = await sample(sequence, StepSpec(ToolChoice("none")))
    assert (time, rest) == (pytest.approx(0.25), [])
    assert isinstance(end, StepEnd) and end.usage.output_tokens == 0


async def test_a_step_that_stalls_forever_can_be_left(autojump_clock):
    sequence = opened("[{text: a, stall: forever}, {text: b}]")
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    assert await sequence.next_deltas() == [TextDelta("a")]
    with trio.move_on_after(1e6) as scope:
        await sequence.next_deltas()
    assert scope.cancelled_caught


# --- how it ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "said", "reason"),
    [
        (0, "", "max_output_tokens"),
        (2, "a b", "max_output_tokens"),
        (3, "a b c", "stop"),
        (9, "a b c", "stop"),
    ],
)
async def test_max_tokens_cuts_a_step_that_is_longer(limit, said, reason):
    deltas = await first_step("{text: a b c}", StepSpec(max_tokens=limit))
    assert text(deltas) == said
    assert end_of(deltas).reason == reason
    assert end_of(deltas).usage.output_tokens == len(said.split())


async def test_max_tokens_cuts_a_call_which_then_has_no_end():
    deltas = await first_step("{call: {name: look, arguments: {n: 1}}}", StepSpec(max_tokens=1), tools=[LOOK])
    assert deltas[:-1] == [CallStart("function_call", "look"), CallDelta('{"n":')]
    assert end_of(deltas).reason == "max_output_tokens"


async def test_max_tokens_met_before_a_call_leaves_it_out():
    deltas = await first_step("{text: a, call: {name: look}}", StepSpec(max_tokens=1), tools=[LOOK])
    assert (deltas[:-1], end_of(deltas).reason) == ([TextDelta("a")], "max_output_tokens")


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
async def test_a_scenario_can_say_how_a_step_ends(reason):
    assert end_of(await first_step(f"{{text: a, end: {reason}}}")).reason == reason


@pytest.mark.parametrize(
    ("steps", "before"),
    [
        ("{text: a b c, fail: {code: x, message: m, status: 503}}", 3),
        ("[{text: a, fail: {code: x, message: m, status: 503}}, {text: b}]", 1),
        ("{text: a b c, fail: {after_tokens: 2, code: x, message: m, status: 503}}", 2),
        ("{text: a b c, fail: {after_tokens: 3, code: x, message: m, status: 503}}", 3),
        ("{text: a b c, fail: {after_tokens: 9, code: x, message: m, status: 503}}", 3),
        ("{text: a b c, fail: {after_tokens: 0, code: x, message: m, status: 503}}", 0),
    ],
)
async def test_a_failure_comes_after_the_deltas_before_it(steps, before):
    sequence = opened(steps)
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    given = []
    with pytest.raises(BackendError) as error:
        while True:
            given += await sequence.next_deltas()
    assert len(given) == before
    assert (error.value.code, error.value.message, error.value.status) == ("x", "m", 503)
    sequence.close()


async def test_max_tokens_below_a_failure_wins():
    deltas = await first_step("{text: a b c, fail: {after_tokens: 3}}", StepSpec(max_tokens=2))
    assert end_of(deltas).reason == "max_output_tokens"


async def test_cancel_wakes_a_waiting_reader_and_keeps_what_was_said(autojump_clock):
    sequence = opened("{text: a b c d, pace: {tokens_per_second: 1}}, {text: next}")
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    await sequence.next_deltas()
    got: list[Delta] = []

    async def read() -> None:
        got.extend(await sequence.next_deltas())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        sequence.cancel_step()
    assert [type(delta) for delta in got] == [StepEnd]
    assert end_of(got).timing.sampling_ms < 1000
    assert end_of(got).usage == count_usage(1, 1)
    assert sequence.num_context_tokens == 2
    assert text([delta for _, delta in await sample(sequence)]) == "next"


async def test_cancel_between_two_batches_needs_no_reader():
    sequence = opened("{text: {tokens: 40}}")
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    assert [len(await sequence.next_deltas()) for _ in range(2)] == [1, MAX_BATCH]
    sequence.cancel_step()
    sequence.cancel_step()
    assert sequence.num_context_tokens == 1 + 1 + MAX_BATCH
    with pytest.raises(ValueError, match="no step is being sampled"):
        await sequence.next_deltas()


async def test_close_ends_the_step_and_allows_no_other():
    sequence = opened("{text: a, stall: forever}")
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    with pytest.raises(ValueError, match="a step is being sampled"):
        sequence.start_step(StepSpec())
    sequence.close()
    with pytest.raises(ValueError, match="closed"):
        sequence.start_step(StepSpec())


async def test_an_interrupted_step_ends_with_what_was_given_so_far(autojump_clock):
    sequence = opened(
        "{text: a b c d, call: {name: look}}, {text: next}", more="pace: {tokens_per_second: 1}", tools=[LOOK]
    )
    await give(sequence, GO)
    sequence.start_step(StepSpec())
    assert [await sequence.next_deltas() for _ in range(2)] == [[TextDelta("a")], [TextDelta(" b")]]
    await trio.sleep(1.5)
    (end,) = sequence.interrupt()
    assert (end.reason, end.usage, end.timing.sampling_ms) == ("stop", count_usage(9, 2), pytest.approx(2500))
    assert text([delta for _, delta in await sample(sequence)]) == "next"


async def test_what_comes_after_a_restart_is_nothing_new_to_the_script():
    sequence = opened("{text: a}, {text: '{turn} {items} {last_user}'}, {text: '{turn} {items}'}")
    await give(sequence, GO)
    await sample(sequence)
    await give(sequence, Message(role="user", content="and"))
    sequence.restart()
    extension = await give(sequence, GO, Message(role="user", content="x" * 40), Message(role="assistant", content="y"))
    timed = await sample(sequence)
    assert text([delta for _, delta in timed]) == "2 2 and"
    assert end_of([delta for _, delta in timed]).usage == count_usage(extension.num_tokens, 3)
    await give(sequence, GO)
    assert text([delta for _, delta in await sample(sequence)]) == "3 3"


async def test_a_summary_is_at_the_pace_of_the_scenario_and_no_step(autojump_clock):
    sequence = opened("{text: a}, {text: '{step}'}", more="pace: {ttft_ms: 500}\nsummary: 'All {items}; {turn}.'")
    await give(sequence, GO)
    await sample(sequence)
    timed = await sample(sequence, StepSpec(is_summary=True))
    assert timed[0][0] == pytest.approx(0.5)
    assert text([delta for _, delta in timed]) == "All 1; 1."
    cut = await sample(sequence, StepSpec(is_summary=True, max_tokens=1))
    assert end_of([delta for _, delta in cut]).reason == "max_output_tokens"
    assert text([delta for _, delta in await sample(sequence)]) == "2"


# --- what it counts ----------------------------------------------------------------------------------------------


async def test_usage_is_the_context_and_what_of_it_was_there_before():
    sequence = opened("{reasoning: hm so, text: a}, {text: b}", instructions="x" * 10)
    assert (await give(sequence, GO)).num_tokens == 3 + 1
    first = end_of([delta for _, delta in await sample(sequence)])
    assert first.usage == count_usage(4, 3, cached_tokens=0, reasoning_tokens=2)
    extension = await give(sequence, Message(role="user", content="y" * 40), GO)
    assert (extension.base, extension.num_items, extension.num_tokens) == (7, 2, 11)
    second = end_of([delta for _, delta in await sample(sequence)])
    assert second.usage == count_usage(18, 1, cached_tokens=7)
    assert (second.timing.tokens_new, second.timing.tokens_reused, second.timing.tokens_prefilled) == (11, 7, 11)


async def test_usage_that_a_scenario_names_is_reported():
    end = end_of(await first_step("{text: a b, usage: {input_tokens: 900, cached_tokens: 800}}"))
    assert end.usage == count_usage(900, 2, cached_tokens=800)


async def test_an_extension_for_another_length_is_refused_and_changes_nothing():
    sequence = opened("{text: '{last_user}'}")
    first, second = await sequence.prepare([GO]), await sequence.prepare([Message(role="user", content="no")])
    sequence.commit(first)
    with pytest.raises(ValueError, match="prepared at 0 tokens, now at 1"):
        sequence.commit(second)
    assert text([delta for _, delta in await sample(sequence)]) == "go"


async def test_input_that_does_not_fit_is_refused_and_a_shorter_one_taken():
    sequence = opened("{text: {tokens: 50}}", more="context_window: 20")
    with pytest.raises(RequestError, match="20 tokens") as error:
        await sequence.prepare([Message(role="user", content="x" * 80)])
    assert error.value.code == "context_length_exceeded"
    await give(sequence, Message(role="user", content="x" * 40))
    end = end_of([delta for _, delta in await sample(sequence, StepSpec(max_tokens=11))])
    assert (end.reason, end.usage.output_tokens) == ("context_length_exceeded", 10)
    assert sequence.num_context_tokens == 20


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Message(role="user", content=""), 1),
        (Message(role="user", content="x" * 43), 10),
        (Message(role="user", content=[InputImage(image_url="data:" + "x" * 1000)]), 1),
        (FunctionCallOutput(call_id="c" * 100, output="x" * 8), 2),
        (items.FunctionCall(call_id="c", name="abcd", arguments="efgh"), 2),
        (items.CustomToolCall(call_id="c", name="abcd", input="efgh"), 2),
        (items.ComputerCallOutput(call_id="c", output=ComputerScreenshot(image_url="x" * 1000)), 1),
        (items.Hosted("mcp_call", {"type": "mcp_call", "output": "x" * 100}), 32),
    ],
)
def test_an_item_is_estimated_by_its_text(item, expected):
    assert estimate_tokens(item) == expected


async def test_an_estimated_context_has_no_tokens_and_counts_tools_once():
    context = EstimatedContext(RunSpec(response_id="r", model="m", tools=[LOOK]))
    first = await context.prepare([GO])
    context.commit(first)
    assert first.num_tokens == 9  # 8 of them for the tool
    assert (await context.prepare([GO])).num_tokens == 1
    assert len(context.tokens) == 0 and first.token_ids == ()


# --- takes -------------------------------------------------------------------------------------------------------


def take(source: str, limit: Limit = NO_LIMIT):
    (step,) = parse_scenario(f"steps: [{source}]").entries
    return take_step(step, {}, [LOOK], ToolChoice(), limit)


def test_a_take_without_pace_has_no_times():
    assert take("{text: a b}").dues is None
    assert take("{text: a b, delay_ms: 1}").end_due == pytest.approx(0.001)


def test_a_take_after_an_endless_stall_is_never_due():
    played = take("[{text: a, stall: forever}, {text: b, call: {name: look}}]")
    assert played.dues == [0.0, *[math.inf] * 4]
    assert played.end_due == math.inf


def test_equal_pieces_of_a_filler_share_a_delta():
    played = take("{text: {tokens: 10000}}")
    assert len({id(delta) for delta in played.deltas}) < 100
    assert played.count(5000) == (5000, 0)


@pytest.mark.parametrize("order", [sorted, reversed])
def test_the_order_of_due_times_is_the_order_of_deltas(order: Callable[[list[str]], list[str]]):
    parts = order(["call: {name: look}", "delay_ms: 20", "text: a b c", "reasoning: d"])
    dues = take(f"{{{', '.join(parts)}, pace: {{ttft_ms: 5, tokens_per_second: 7}}}}").dues
    assert dues == sorted(dues)
