"""response.py: the rules of a run, one by one, and a random walk that holds it to all of them at once."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, ReasoningDelta, StepEnd, TextDelta, ToolChoice
from engine.errors import BackendError, NotFound, RequestError, ServerError
from engine.events import decode_event, encode_event
from engine.items import Item, decode_item, encode_item
from engine.log import EventsExpired
from engine.response import Response
from engine.settings import Settings
from engine.status import Reason, Status
from engine.tokens import Span
from engine.usage import Timing, Usage, count_usage
from tests.machines import (
    NOTE,
    NOW,
    SETTINGS,
    WEATHER,
    Run,
    call,
    counting_ids,
    frozen,
    item,
    json_paths_of_null,
    num_bytes_held,
    output,
    request,
    stop,
    user,
)
from tests.test_events import check_response_object

TERMINALS = {"done", "completed", "incomplete", "failed"}
TOOLS = [WEATHER, NOTE]


def refusal(run: Run, *items: Item) -> RequestError:
    """The error of an append that must change nothing."""
    before = frozen(run.response)
    with pytest.raises(RequestError) as caught:
        run.append(*items)
    assert frozen(run.response) == before
    return caught.value


def terminals(run: Run) -> list[str]:
    return [name for name in run.types if name in TERMINALS]


# --- one step ----------------------------------------------------------------------------------------------------


def test_answer_without_calls_has_the_full_scaffold() -> None:  # P29
    # BerriAI/litellm#9545, #22102, openai/codex#12798, Oaklight/llm-rosetta#56, Sophomoresty/gemini-web2api#57
    run = Run().step("Hi", " there.")
    assert run.types == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in run.events] == list(range(10))
    assert run.response.status is Status.COMPLETED


def test_lifecycle_events_hold_a_whole_response_object() -> None:
    run = Run(tools=TOOLS, metadata={"k": "v"}).step("Hi")
    for event in (run.events[0], run.events[1], run.last):
        check_response_object(event["response"])
        assert (event["response"]["id"], event["response"]["created_at"]) == ("resp_0", int(NOW))
    assert [event["response"]["status"] for event in (run.events[0], run.last)] == ["in_progress", "completed"]
    assert (run.events[0]["response"]["usage"], run.events[0]["response"]["output"]) == (None, [])
    assert run.last["response"]["completed_at"] == int(NOW) + 1


def test_no_item_ever_holds_null() -> None:  # P29
    run = Run(tools=TOOLS).feed(ReasoningDelta("r")).step("t", call(), call("x", name="note", kind="custom_tool_call"))
    items = [event["item"] for event in run.events if "item" in event]
    assert len(items) == 8
    assert json_paths_of_null(items) == []


def test_final_output_is_complete_and_has_the_ids_that_were_streamed() -> None:
    # NousResearch/hermes-agent#5678, liaohch3/claude-tap#343, BerriAI/litellm#30071
    run = Run(tools=TOOLS).feed(ReasoningDelta("r")).step("a", call())
    run.append(output("call_0"))
    run.response.take_new_items()
    run.step("b")
    done = [event["item"] for event in run.events if event["type"] == "response.output_item.done"]
    assert run.last["response"]["output"] == done
    assert [one["type"] for one in done] == ["reasoning", "message", "function_call", "message"]
    assert run.response.snapshot().output == run.response.output


@pytest.mark.parametrize("reason", ["max_output_tokens", "context_length_exceeded", "content_filter"])
def test_answer_that_was_cut_is_incomplete_and_says_why(reason: str) -> None:
    # jundot/omlx#2817, unslothai/unsloth#10177, vllm-project/vllm#45386
    run = Run().step("It was a dark", end=stop(reason))
    assert run.types[-1] == "incomplete"
    assert run.last["response"]["status"] == "incomplete"
    assert run.last["response"]["incomplete_details"] == {"reason": reason}
    assert run.last["response"]["completed_at"] is None
    assert run.events[-2]["item"]["status"] == "incomplete"
    assert run.response.status is Status.INCOMPLETE


def test_call_that_was_cut_is_the_last_item_and_incomplete() -> None:
    run = Run(tools=TOOLS).step(
        "t", call(), [CallStart("function_call", "weather"), CallDelta('{"c')], end=stop("max_output_tokens")
    )
    assert [one["status"] for one in run.last["response"]["output"]] == ["completed", "completed", "incomplete"]
    assert terminals(run) == ["incomplete"]


def test_step_that_says_nothing_completes() -> None:
    assert Run().step().types == ["created", "in_progress", "completed"]


def test_malformed_action_fails_the_run_as_a_model_error() -> None:
    run = Run(tools=[{"type": "shell"}]).feed("t")
    with pytest.raises(BackendError) as caught:
        run.feed(call('{"commands":5}', name="shell", kind="shell_call"))
    run.response.fail(caught.value, NOW)
    assert (run.types[-1], run.last["response"]["error"]["code"]) == ("failed", "model_error")


def test_warm_up_completes_without_output_and_without_output_tokens() -> None:
    # router-for-me/CLIProxyAPI#1901
    run = Run(input=[], generate=False)
    run.response.complete_without_sampling(count_usage(7, 0), Timing(), NOW)
    assert run.types == ["created", "in_progress", "completed"]
    assert run.last["response"]["output"] == []
    assert run.last["response"]["usage"]["output_tokens"] == 0


def test_step_ends_by_end_step_only() -> None:
    with pytest.raises(ValueError, match="end_step"):
        Run().response.feed(stop())


# --- rules 1 to 3: one run, one terminal per step, a pause of constant size ---------------------------------------


def test_one_run_has_one_id_one_created_and_rising_numbers_over_all_its_steps() -> None:  # P27
    run = Run(tools=TOOLS)
    for number in range(3):
        run.step("t", call())
        run.append(output(f"call_{number}"))
        run.response.take_new_items()
    run.step("end")
    assert run.types.count("created") == 1
    assert terminals(run) == ["done", "done", "done", "completed"]
    assert [event["sequence_number"] for event in run.events] == list(range(len(run.events)))
    added = [event["output_index"] for event in run.events if event["type"] == "response.output_item.added"]
    assert added == list(range(7))
    assert {event["response"]["id"] for event in run.events if "response" in event} == {"resp_0"}


def test_pause_says_what_is_pending_and_nothing_else() -> None:
    run = Run(tools=TOOLS).step("t", call(), call("x", name="note", kind="custom_tool_call"))
    assert run.types[-1] == "done"
    pause = run.last["response"]
    assert pause.keys() == {"id", "object", "status", "usage", "run_usage", "pending", "timing"}
    assert (pause["id"], pause["object"], pause["status"]) == ("resp_0", "response", "in_progress")
    keys = ("type", "name", "item_id", "answer_type", "answer_key")
    assert [tuple(one) for one in pause["pending"]] == [keys, keys]
    assert [tuple(one.values()) for one in pause["pending"]] == [
        ("function_call", "weather", "fc_0", "function_call_output", "call_0"),
        ("custom_tool_call", "note", "ctc_0", "custom_tool_call_output", "call_1"),
    ]


def test_pause_has_constant_size() -> None:  # P28
    run, sizes = Run(tools=TOOLS), []
    for number in range(30):
        run.step("word " * 50, call('{"x": "%s"}' % ("y" * 500)), end=stop(given=100_000, sampled=1000))  # braces
        sizes.append(len(run.live[-1]))
        run.append(output(f"call_{number}", "z" * 1000))
        run.response.take_new_items()
    assert max(sizes) < 1500
    assert max(sizes) - min(sizes) < 60  # numbers with more digits


def test_usage_is_the_steps_and_run_usage_the_sum() -> None:  # P31
    run = Run(tools=TOOLS).step(call(), end=stop(given=100, sampled=5, cached=0))
    run.append(output("call_0"))
    run.response.take_new_items()
    first = run.last["response"]
    run.step("end", end=stop(given=120, sampled=7, cached=105))
    last = run.last["response"]
    assert (first["usage"], first["run_usage"]) == (first["usage"], first["usage"])
    assert last["usage"] == {
        "input_tokens": 120,
        "input_tokens_details": {"cached_tokens": 105, "cache_write_tokens": 15},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 127,
    }
    assert (last["run_usage"]["input_tokens"], last["run_usage"]["output_tokens"]) == (220, 12)
    assert run.response.num_sampled == 12


def test_timing_is_given_per_step_and_for_the_run() -> None:  # P32
    run = Run(tools=TOOLS)
    run.feed(call())
    run.response.end_step(stop(), Timing(prefill_ms=1.00049, items_new=1), NOW)
    run.append(output("call_0"))
    run.response.take_new_items()
    run.response.end_step(stop(), Timing(prefill_ms=2.0, client_wait_ms=5.0, items_new=1), NOW)
    timing = run.last["response"]["timing"]
    assert (timing["step"]["prefill_ms"], timing["run"]["prefill_ms"]) == (2.0, 3.0)
    assert (timing["step"]["items_new"], timing["run"]["items_new"]) == (1, 2)
    assert timing["run"]["client_wait_ms"] == 5.0


# --- rules 4 to 6: appends ---------------------------------------------------------------------------------------


def test_outputs_may_come_one_by_one_in_any_order_and_go_on_in_call_order() -> None:
    run = Run(tools=TOOLS).step(call(), call(), call())
    assert run.append(output("call_2", "c"), user("also")) is False
    assert run.append(output("call_0", "a")) is False
    assert run.response.still_pending() == ["call_1"]
    assert run.response.status is Status.PAUSED
    assert run.append(output("call_1", "b")) is True
    assert run.response.status is Status.IN_PROGRESS
    assert run.response.take_new_items() == [
        output("call_0", "a"),
        output("call_1", "b"),
        output("call_2", "c"),
        user("also"),
    ]
    assert run.response.take_new_items() == []


def test_append_logs_nothing() -> None:
    run = Run(tools=TOOLS).step(call())
    before = len(run.live)
    run.append(output("call_0"))
    assert len(run.live) == before


def test_early_append_needs_no_pause() -> None:  # rule 6
    run = Run(tools=TOOLS).feed(call())
    assert run.append(output("call_0", "a")) is False
    run.step("more", call())
    assert run.append(output("call_1", "b")) is True
    run.response.take_new_items()
    run.feed(call())
    run.append(output("call_2", "c"))
    run.step()
    assert run.response.status is Status.IN_PROGRESS
    assert terminals(run) == ["done"]
    assert run.response.take_new_items() == [output("call_2", "c")]


def test_call_can_be_answered_from_its_done_event_on_and_no_sooner() -> None:
    run = Run(tools=TOOLS).feed([CallStart("function_call", "weather"), CallDelta("{}")])
    assert refusal(run, output("call_0")).param == "input[0].call_id"
    run.feed([CallEnd()])
    run.append(output("call_0"))


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([output("call_0"), output("call_x")], "input[1].call_id"),
        ([output("call_0"), output("call_0", "other")], "input[1].call_id"),
        ([item(type="custom_tool_call_output", call_id="call_0", output="x")], "input[0].type"),
        ([item(type="message", role="assistant", content="never said")], "input[0].type"),
        ([user()], "input"),
        ([output("call_0", "x", offset=3, status="in_progress")], "input[0].offset"),
    ],
)
def test_append_that_is_wrong_is_refused_whole_and_the_run_still_waits(items: list[Item], param: str) -> None:
    run = Run(tools=TOOLS).step(call(), call())
    error = refusal(run, *items)
    assert (error.param, error.status) == (param, 400)
    assert run.response.still_pending() == ["call_0", "call_1"]


def test_message_alone_names_the_call_that_waits() -> None:  # frontman-ai/frontman#1592, kernl-sdk/kernl#60
    error = refusal(Run(tools=TOOLS, keep_open=True).step(call()), user())
    assert error.message == "No tool output found for function call call_0."


@pytest.mark.parametrize("how", ["completed", "incomplete", "failed", "expired", "cancelled"])
def test_append_to_a_run_that_has_ended_is_not_found(how: str) -> None:
    run = Run(tools=TOOLS)
    match how:
        case "completed":
            run.step("t")
        case "incomplete":
            run.step("t", end=stop("max_output_tokens"))
        case "failed":
            run.response.fail(ServerError("x"), NOW)
        case "expired":
            run.step(call()).response.end("append_timeout", NOW)
        case _:
            run.step(call()).response.end("cancelled", NOW)
    error = refusal(run, output("call_0"))
    assert isinstance(error, NotFound)
    assert (error.status, error.code) == (404, "response_not_found")


def test_append_of_what_is_known_changes_nothing_for_the_model() -> None:
    run = Run(tools=TOOLS).step(call(), call())
    run.append(output("call_0"))
    assert run.append(output("call_0")) is False
    assert run.append(*(decode_item(encode_item(one)) for one in run.response.output)) is False
    assert run.append() is False
    run.append(output("call_1"))
    run.response.take_new_items()
    run.append(output("call_0"), output("call_1"))
    assert run.response.take_new_items() == []


def test_what_a_client_repeats_of_a_completed_run_is_left_out() -> None:  # openai/codex#11383
    run = Run(tools=TOOLS).step("t", call())
    run.append(output("call_0"))
    run.response.take_new_items()
    run.step("end")
    again = [decode_item(encode_item(one)) for one in run.response.output]
    assert run.response.new_items([*again[:2], output("call_0"), again[2], user()]) == [user()]


def test_peek_shows_what_would_be_taken() -> None:
    run = Run(tools=TOOLS).step(call(), call())
    run.append(output("call_1", "b"), user("m"))
    batch = run.response.check([user("n"), output("call_0", "a")])
    peeked = run.response.peek_new_items(batch)
    assert run.response.commit(batch)
    assert (
        peeked == run.response.take_new_items() == [output("call_0", "a"), output("call_1", "b"), user("m"), user("n")]
    )


def test_streamed_append_goes_on_when_its_last_part_arrives() -> None:  # rule 7
    run = Run(tools=TOOLS).step(call())
    for text, offset in (("ab", 0), ("cd", 2), ("b", 1)):
        assert run.append(output("call_0", text, offset=offset, status="in_progress")) is False
    assert run.append(output("call_0", "e", offset=4, status="completed")) is True
    assert run.response.take_new_items() == [output("call_0", "abcde", status="completed")]


def test_max_streamed_output_chars_is_reached() -> None:
    run = Run(settings=Settings(max_streamed_output_chars=3), tools=TOOLS).step(call())
    run.append(output("call_0", "abc", offset=0, status="in_progress"))
    assert refusal(run, output("call_0", "d", offset=3, status="in_progress")).code == "output_too_long"


# --- rule 8: kept open -------------------------------------------------------------------------------------------


def test_kept_open_run_waits_for_the_user_and_goes_on_in_the_same_response() -> None:
    run = Run(keep_open=True).step("Hi.")
    assert (run.types[-1], run.last["response"]["pending"]) == ("done", [])
    assert run.append() is False
    assert run.append(user("More!")) is True
    assert run.response.take_new_items() == [user("More!")]
    assert run.step("More.").types[-1] == "done"


def test_message_to_a_kept_open_run_that_samples_is_for_the_next_step() -> None:
    run = Run(keep_open=True).feed("Hi")
    assert run.append(user()) is False
    run.step(".")
    assert run.response.status is Status.IN_PROGRESS
    assert terminals(run) == []
    assert run.response.take_new_items() == [user()]


def test_message_to_a_run_that_is_not_kept_open_is_refused() -> None:
    assert "kept open" in refusal(Run().feed("Hi"), user()).message


# --- rules 14 and 15 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "top_logprobs"),
    [({"top_logprobs": 2}, None), ({"top_logprobs": 2, "include": ["message.output_text.logprobs"]}, 2)],
)
def test_every_step_is_asked_for_log_probabilities_if_the_client_wants_them(
    fields: dict[str, Any], top_logprobs: int | None
) -> None:
    assert Run(**fields).response.step_spec().top_logprobs == top_logprobs
    recording = Run(settings=Settings(record_logprobs=True), **fields).response
    assert recording.step_spec().top_logprobs == (top_logprobs or 0)
    assert recording.request.top_logprobs == top_logprobs  # what the client is shown


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_forced_choice_holds_until_the_first_call(choice: Any) -> None:  # P24
    run = Run(tools=TOOLS, tool_choice=choice)
    assert run.response.step_spec().tool_choice.mode == "required"
    run.step(call())
    run.append(output("call_0"))
    assert run.response.step_spec().tool_choice == ToolChoice("auto")


def test_forced_choice_falls_back_to_the_tools_that_are_allowed() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    run = Run(tools=TOOLS, tool_choice=allowed).step(call())
    run.append(output("call_0"))
    assert run.response.step_spec().tool_choice == ToolChoice("auto", frozenset({"weather"}))


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_choice_that_forces_nothing_stays(choice: str) -> None:
    run = Run(tools=TOOLS, tool_choice=choice).step(call())
    run.append(output("call_0"))
    assert run.response.step_spec().tool_choice == ToolChoice(choice)  # type: ignore[arg-type]


def test_append_may_set_another_choice_which_then_holds_until_the_next_call() -> None:
    run = Run(tools=TOOLS).step(call())
    run.append(output("call_0"), choice=ToolChoice("required"))
    run.response.take_new_items()
    assert run.response.step_spec().tool_choice == ToolChoice("required")
    run.step(call())
    run.append(output("call_1"))
    assert run.response.step_spec().tool_choice == ToolChoice("auto")


def test_choice_of_an_early_append_is_for_the_steps_after_it() -> None:
    run = Run(tools=TOOLS).feed(call())
    run.append(output("call_0"), choice=ToolChoice("required"))
    run.step(call())
    run.append(output("call_1"))
    run.response.take_new_items()
    assert run.response.step_spec().tool_choice == ToolChoice("required")


def test_max_output_tokens_is_of_the_whole_run() -> None:
    run = Run(tools=TOOLS, max_output_tokens=10)
    assert run.response.step_spec().max_tokens == 10
    run.step(call(), end=stop(sampled=8))
    run.append(output("call_0"))
    assert run.response.step_spec().max_tokens == 2
    run.response.take_new_items()
    run.step(call(), end=stop(sampled=5))
    assert run.response.step_spec().max_tokens == 0
    assert Run().response.step_spec().max_tokens is None


# --- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["superseded", "append_timeout", "idle_timeout", "server_shutdown", "connection_lost"]
)
def test_end_while_nobody_samples_is_unsolicited(reason: Reason) -> None:  # rule 2
    run = Run(tools=TOOLS).step(call())
    at = run.response.log.next
    run.response.end(reason, NOW)
    assert (run.response.progress.unsolicited_from, run.response.log.next) == (at, at + 1)
    assert run.last["response"]["incomplete_details"] == {"reason": reason}


def test_failure_while_nobody_samples_is_unsolicited() -> None:
    run = Run(tools=TOOLS).step(call())
    run.response.fail(BackendError("the worker is gone"), NOW)
    assert run.response.progress.unsolicited_from == run.response.log.next - 1


def test_cancel_is_answered_by_incomplete_paused_or_not() -> None:
    for run in (Run(tools=TOOLS).step(call()), Run(tools=TOOLS).feed("t")):
        run.response.end("cancelled", NOW)
        assert run.response.progress.unsolicited_from is None
        assert run.last["response"]["incomplete_details"] == {"reason": "cancelled"}


def test_a_run_in_the_background_that_is_called_off_is_cancelled() -> None:  # P69
    run = Run().feed("half")
    echo = msgspec.structs.replace(run.response.request.echo, background=True)
    run.response.request = msgspec.structs.replace(run.response.request, echo=echo)
    run.response.end("cancelled", NOW)
    assert (run.types[-1], run.last["response"]["status"]) == ("incomplete", "cancelled")
    assert not run.response.can_go_on


def test_cancel_finishes_the_item_that_streams_as_incomplete() -> None:
    run = Run().feed("half")
    run.response.end("cancelled", NOW)
    assert run.types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert run.last["response"]["output"][0]["status"] == "incomplete"


def test_failure_tells_code_and_message_only() -> None:  # vllm-project/vllm#35492
    run = Run().feed("half")
    run.response.fail(BackendError("The model failed."), NOW)
    assert run.types[-1] == "failed"
    assert run.last["response"]["error"] == {"code": "server_error", "message": "The model failed."}
    assert run.last["response"]["status"] == "failed"


ENDS = {
    "completed": lambda run: run.step("t"),
    "incomplete": lambda run: run.response.end("cancelled", NOW),
    "failed": lambda run: run.response.fail(ServerError("x"), NOW),
}


@pytest.mark.parametrize("how", ENDS)
def test_nothing_follows_the_final_event(how: str) -> None:
    run = Run(tools=TOOLS)
    batch = run.response.check([])
    ENDS[how](run)
    before = frozen(run.response)
    for again in (lambda: run.response.end("superseded", NOW), lambda: run.response.fail(ServerError("y"), NOW)):
        again()  # ending twice is ending once
    for act in (
        run.response.start,
        lambda: run.response.feed(TextDelta("x")),
        lambda: run.response.feed(CallStart("function_call", "f")),
        lambda: run.response.tokens_joined([Span(0, 0, True, [1])]),
        lambda: run.response.end_step(stop(), Timing(), NOW),
        lambda: run.response.complete_without_sampling(Usage(), Timing(), NOW),
        run.response.take_new_items,
        lambda: run.response.commit(batch),
    ):
        with pytest.raises(ValueError, match=f"resp_0 is {how}"):
            act()
    assert frozen(run.response) == before


def test_nobody_samples_at_a_pause() -> None:
    run = Run(tools=TOOLS).step(call())
    before = frozen(run.response)
    for act in (
        lambda: run.response.feed(TextDelta("x")),
        lambda: run.response.tokens_joined([Span(0, 0, True, [1])]),
        lambda: run.response.end_step(stop(), Timing(), NOW),
        run.response.take_new_items,
    ):
        with pytest.raises(ValueError, match="resp_0 is paused"):
            act()
    assert frozen(run.response) == before


def test_run_starts_once() -> None:
    with pytest.raises(ValueError, match="started"):
        Run().response.start()


def test_tokens_are_logged_when_there_are_some() -> None:
    run = Run(include=["response.tokens"])
    run.response.tokens_joined([])
    run.response.tokens_joined([Span(0, 3, True, [7, 8])])
    run.step()
    assert run.events[-2] == {
        "type": "response.tokens",
        "sequence_number": 2,
        "response_id": "resp_0",
        "spans": [{"segment": 0, "offset": 3, "sampled": True, "ids": [7, 8]}],
    }


def test_tokens_of_a_step_do_not_come_between_the_events_of_an_item() -> None:
    run = Run(include=["response.tokens"]).feed("t")
    run.response.tokens_joined([Span(0, 3, True, [7])])
    run.step()
    assert run.types[-5:] == ["output_text.done", "content_part.done", "output_item.done", "tokens", "completed"]


# --- the log -----------------------------------------------------------------------------------------------------


def test_max_log_events_is_reached() -> None:
    run = Run(settings=Settings(max_log_events=10, high_water_events=5))
    for number in range(30):
        run.feed(f"{number}")
    log = run.response.log
    assert log.next - log.oldest == 10
    with pytest.raises(EventsExpired):
        log.read(log.oldest - 1)
    run.step()
    assert run.replayed() == run.live[log.oldest :]
    assert log.next - log.oldest <= 10


def test_paused_run_is_small() -> None:
    """20 items, 4000 deltas, 10 pauses: the budget is 60 kB beside the connection and the KV."""
    words = random.Random(7)
    run = Response("resp_0", request(tools=TOOLS), SETTINGS, counting_ids(), NOW)
    run.start()
    for number in range(10):
        for _ in range(300):
            run.feed(TextDelta(words.choice([" the", " of", "ing", " tool", ","])))
        run.feed(CallStart("function_call", "weather"))
        for _ in range(100):
            run.feed(CallDelta(words.choice(['{"', '":', " 12", "city", "}"])))
        run.feed(CallEnd())
        run.end_step(stop(), Timing(queue_ms=0.123 + number, prefill_ms=4.5, sampling_ms=6.7), NOW)
        if number < 9:
            run.commit(run.check([output(f"call_{number}", "x" * 100)]))
            run.take_new_items()
    assert (len(run.output), run.status) == (20, Status.PAUSED)
    assert num_bytes_held(run.log, run.output, shared=[run.request, SETTINGS]) < 48_000
    assert num_bytes_held(run, shared=[run.request, SETTINGS]) < 55_000


# --- everything at once ------------------------------------------------------------------------------------------

KINDS = [("function_call", "weather"), ("custom_tool_call", "note"), ("shell_call", "shell")]


class Walk:
    """Drives a run at random as loop, client and clock would, with a plain model of what has to come out."""

    def __init__(self, chance: random.Random, keep_open: bool) -> None:
        self.chance = chance
        self.run = Run(tools=[*TOOLS, {"type": "shell"}], keep_open=keep_open)
        self.keep_open = keep_open
        self.calls: list[tuple[str, str]] = []  # (key, kind) of the open calls, in order
        self.given: dict[str, Item] = {}  # whole answers to them
        self.parts: dict[str, str] = {}
        self.closed: dict[str, Item] = {}
        self.messages: list[Item] = []
        self.in_call: str | None = None
        self.num_calls = 0
        self.pauses = 0
        self.usages: list[Usage] = []

    @property
    def status(self) -> Status:
        return self.run.response.status

    def move(self) -> None:
        """One thing that can happen now."""
        acts = [self.append] * 4
        if self.chance.random() < 0.03:
            acts = [self.end]
        elif self.status is Status.IN_PROGRESS:
            acts += [self.sample] * 6 + [self.end_step] * 2
        self.chance.choice(acts)()
        self.check()

    # the loop's side

    def sample(self) -> None:
        response, text = self.run.response, self.chance.choice(["a", "bc", "", "é\n", "{}"])
        if self.in_call is not None:
            if self.chance.random() < 0.5:
                response.feed(CallDelta('{"commands":["ls"]}' if self.in_call == "shell_call" else text))
                if self.in_call != "shell_call":
                    return
            if self.in_call == "shell_call" and not self.run.response._writer._call_text:
                response.feed(CallDelta('{"commands":[]}'))
            response.feed(CallEnd())
            self.calls.append((f"call_{self.num_calls}", self.in_call))
            self.num_calls += 1
            self.in_call = None
        elif self.chance.random() < 0.4:
            kind, name = self.chance.choice(KINDS)
            response.feed(CallStart(kind, name))  # type: ignore[arg-type]
            self.in_call = kind
        else:
            response.feed(self.chance.choice([TextDelta, ReasoningDelta])(text))

    def end_step(self) -> None:
        reason = "stop" if self.in_call is None and self.chance.random() < 0.95 else "max_output_tokens"
        self.in_call = None
        end = StepEnd(reason, count_usage(self.chance.randrange(100), self.chance.randrange(9)))  # type: ignore[arg-type]
        self.usages.append(end.usage)
        waiting = [key for key, _ in self.calls if key not in self.given]
        self.run.response.end_step(end, Timing(queue_ms=0.5), NOW)
        if reason != "stop":
            assert self.status is Status.INCOMPLETE
        elif waiting:
            assert self.status is Status.PAUSED
            assert [one["answer_key"] for one in self.run.last["response"]["pending"]] == waiting
        elif self.calls or self.messages:
            assert self.status is Status.IN_PROGRESS
            self.take()
        else:
            assert self.status is (Status.PAUSED if self.keep_open else Status.COMPLETED)
        self.pauses += self.status is Status.PAUSED

    def take(self) -> None:
        assert self.run.response.take_new_items() == [*(self.given[key] for key, _ in self.calls), *self.messages]
        self.closed |= self.given
        self.calls, self.given, self.parts, self.messages = [], {}, {}, []

    def end(self) -> None:
        is_sampling = self.status is Status.IN_PROGRESS
        if self.chance.random() < 0.3:
            self.run.response.fail(ServerError("x"), NOW)
        else:
            self.run.response.end(self.chance.choice(["cancelled", "append_timeout", "superseded"]), NOW)  # type: ignore[arg-type]
        assert not self.run.response.is_open
        assert not is_sampling or self.run.response.progress.unsolicited_from is None

    # the client's side

    def answer(self, key: str, kind: str, text: str) -> Item:
        if kind == "shell_call" and self.chance.random() < 0.5:
            return item(type="shell_call_output", call_id=key, output=[{"stdout": text}])
        kind = "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output"
        return item(type=kind, call_id=key, output=text)

    def append(self) -> None:
        """An append of up to four things, of which one may be wrong; then nothing may change."""
        items: list[Item] = []
        given, parts = dict(self.given), dict(self.parts)
        messages: list[Item] = []
        answers = False
        for _ in range(self.chance.randrange(4)):
            what = self.chance.choice(["whole", "whole", "part", "resend", "echo", "message"])
            waiting = [(key, kind) for key, kind in self.calls if key not in given]
            if what == "whole" and waiting:
                key, kind = self.chance.choice(waiting)
                if key in parts:
                    items.append(self.part(key, kind, parts.pop(key), last=True))
                    given[key] = self.part(key, kind, "", last=True, whole=items[-1])
                else:
                    given[key] = self.answer(key, kind, self.chance.choice(["", "x", "yz"]))
                    items.append(given[key])
                answers = True
            elif what == "part" and (growing := [one for one in waiting if one[1] != "shell_call"]):
                key, kind = self.chance.choice(growing)
                items.append(self.part(key, kind, parts.get(key, ""), last=False))
                parts[key] = parts.get(key, "") + items[-1].output  # type: ignore[union-attr]
                answers = True
            elif what == "resend" and (known := [*given.values(), *self.closed.values()]):
                items.append(self.chance.choice(known))
                answers = True
            elif what == "echo" and self.run.response.output:
                items.append(decode_item(encode_item(self.chance.choice(self.run.response.output))))
            elif what == "message":
                messages.append(user(f"{self.chance.random()}"))
                items.append(messages[-1])
        wrong = self.wrong(given) if self.chance.random() < 0.3 else None
        if wrong is not None:
            items.insert(self.chance.randrange(len(items) + 1), wrong)
        is_alone = bool(messages) and not answers
        may_come_alone = self.keep_open and not any(key not in self.given for key, _ in self.calls)
        if wrong is not None or (is_alone and not may_come_alone) or not self.run.response.is_open:
            before = frozen(self.run.response)
            with pytest.raises(RequestError):
                self.run.append(*items)
            assert frozen(self.run.response) == before
            return
        was_paused = self.status is Status.PAUSED
        goes_on = self.run.append(*items)
        self.given, self.parts, self.messages = given, parts, [*self.messages, *messages]
        is_ready = all(key in given for key, _ in self.calls) and bool(self.calls or self.messages)
        assert goes_on is (was_paused and is_ready)
        if goes_on:
            self.take()

    def part(self, key: str, kind: str, known: str, *, last: bool, whole: Item | None = None) -> Item:
        """The next part after `known`, or (given the last part) what the whole answer must be."""
        kind = "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output"
        if whole is not None:
            text = self.joined
            return item(type=kind, call_id=key, output=text, status="completed")
        text = self.chance.choice(["p", "qr", ""])
        self.joined = known + text
        status = "completed" if last else "in_progress"
        return item(type=kind, call_id=key, output=text, offset=len(known), status=status)

    def wrong(self, given: dict[str, Item]) -> Item:
        """An item that no append may hold."""
        bad = [
            output("call_unknown"),
            item(type="message", role="assistant", content="never said"),
            item(type="compaction", id="x", encrypted_content="x"),
        ]
        bad += [output(key, "nothing like that") for key in self.closed]
        bad += [output(key, "gap", offset=10_000, status="in_progress") for key, _ in self.calls if key not in given]
        return self.chance.choice(bad)

    # what must hold

    def check(self) -> None:
        events = self.run.events
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert terminals(self.run).count("done") == self.pauses
        finals = [event for event in events if event["type"].removeprefix("response.") in TERMINALS - {"done"}]
        assert len(finals) == (not self.run.response.is_open)
        assert not finals or finals == events[-1:]

    def check_whole(self) -> None:
        events = self.run.events
        assert [event["type"] for event in events].count("response.created") == 1
        assert self.run.replayed() == self.run.live
        assert [encode_event(decode_event(data)) for data in self.run.live] == self.run.live
        open_ids: dict[int, str] = {}
        done: list[dict[str, Any]] = []
        for event in events:
            name = event["type"].removeprefix("response.")
            if name == "output_item.added":
                assert event["output_index"] == len(done) + len(open_ids)
                assert event["item"].get("status") != "completed" or event["item"]["type"] == "shell_call"
                open_ids[event["output_index"]] = event["item"]["id"]
            elif name == "output_item.done":
                assert open_ids.pop(event["output_index"]) == event["item"]["id"]
                done.append(event["item"])
            elif "output_index" in event:
                assert event.get("item_id", open_ids[event["output_index"]]) == open_ids[event["output_index"]]
                assert event.get("delta") != ""
            elif name in TERMINALS:
                assert open_ids == {}
        assert len({one["id"] for one in done}) == len(done)
        snapshot = msgspec.json.decode(msgspec.json.encode(self.run.response.snapshot()))
        assert snapshot["output"] == done
        if not self.run.response.is_open:
            assert self.run.last["response"] == snapshot
        total = sum(self.usages, Usage())
        assert self.run.response.progress.run_usage == total
        steps = [event["response"] for event in events if event["type"] == "response.done"]
        assert all(step["run_usage"]["input_tokens"] <= total.input_tokens for step in steps)
        assert json_paths_of_null(done) == []


@given(seed=st.integers(0, 2**32), num_moves=st.integers(1, 60), keep_open=st.booleans())
def test_any_walk_keeps_every_rule(seed: int, num_moves: int, keep_open: bool) -> None:  # P27, P28, P29
    walk = Walk(random.Random(seed), keep_open)
    for _ in range(num_moves):
        walk.move()
    walk.check_whole()


def test_walks_reach_everything() -> None:
    """The walk is only worth something if it gets far: pauses, resumes, parts, and every end."""
    seen: set[str] = set()
    for seed in range(40):
        walk = Walk(random.Random(seed), keep_open=bool(seed % 2))
        for _ in range(60):
            walk.move()
        seen |= set(terminals(walk.run)) | {f"pauses {min(walk.pauses, 3)}", f"closed {min(len(walk.closed), 3)}"}
    assert TERMINALS | {"pauses 3", "closed 3"} <= seen
