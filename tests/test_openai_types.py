"""Every event, as openai-python's own types read it: strictly, with every required field and no stray null."""

from typing import Any

import pytest

from engine.backends.base import CallDelta, CallEnd, CallStart, ReasoningDelta
from engine.errors import ServerError
from tests.machines import NOTE, NOW, WEATHER, Run, call, output, stop

pytestmark = pytest.mark.peer

TOOLS = [WEATHER, NOTE, {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
ACTIONS: list[tuple[Any, str]] = [
    ("local_shell_call", '{"command":["ls"]}'),
    ("shell_call", '{"commands":["ls","pwd"]}'),
    ("apply_patch_call", '{"type":"create_file","path":"a","diff":"+x"}'),
    ("computer_call", '{"type":"screenshot"}'),
    ("tool_search_call", '{"query":"q"}'),
]


def all_kinds_of_events() -> list[dict[str, Any]]:
    """The events of runs in which everything happens that a run can say."""
    run = Run(tools=TOOLS, metadata={"k": "v"}, reasoning={"effort": "low"}, text={"verbosity": "low"})
    run.feed(
        ReasoningDelta("hm"), "Hi", " there", call('{"city":"Bern"}'), call("x", name="note", kind="custom_tool_call")
    )
    for kind, text in ACTIONS:
        run.feed([CallStart(kind, kind.removesuffix("_call")), CallDelta(text), CallEnd()])
    run.feed([CallStart("mcp_approval_request", "f", server_label="crm"), CallDelta("{}"), CallEnd()])
    run.step()
    cut = Run(tools=TOOLS).step("half", end=stop("max_output_tokens"))
    cut_call = Run(tools=TOOLS).step(
        [CallStart("function_call", "weather"), CallDelta("{")], end=stop("max_output_tokens")
    )
    failed = Run()
    failed.response.fail(ServerError("no"), NOW)
    finished = Run(tools=TOOLS).step(call())
    finished.append(output("call_0"))
    finished.response.take_new_items()
    finished.step("done")
    return [event for one in (run, cut, cut_call, failed, finished) for event in one.events]


EVENTS = all_kinds_of_events()
# Ours alone; openai-python keeps it as a dict (facts/responses-api.md, 2.3).
OURS = {"response.done", "response.tokens"}


@pytest.fixture(scope="module")
def adapter() -> Any:
    """openai-python's union of events, validating."""
    # Not at the top: without the package these tests are not selected, but they are still collected.
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    return TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize("type_", sorted({event["type"] for event in EVENTS} - OURS))
def test_event_is_one_of_openais(adapter: Any, type_: str) -> None:
    for event in EVENTS:
        if event["type"] == type_:
            parsed = adapter.validate_python(event)
            assert parsed.type == type_
            assert parsed.sequence_number == event["sequence_number"]


def test_types_are_strict_enough_to_mean_something(adapter: Any) -> None:
    with pytest.raises(ValueError):
        adapter.validate_python({"type": "response.output_text.delta", "sequence_number": 1})


def test_the_sdks_accumulator_takes_a_run_that_completed(adapter: Any) -> None:  # openai/openai-python#2852
    from openai import omit  # as above
    from openai.lib.streaming.responses._responses import ResponseStreamState

    run = Run(tools=TOOLS).feed(ReasoningDelta("hm")).step("Hi", " there.")
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in run.events:
        state.handle_event(adapter.validate_python(event))
    assert state._completed_response.output_text == "Hi there."


def test_the_sdks_accumulator_takes_a_run_of_several_steps_as_one_response(adapter: Any) -> None:
    from openai import omit  # as above
    from openai.lib.streaming.responses._responses import ResponseStreamState

    run = Run(tools=TOOLS).step("First.", call("{}"))
    run.append(output("call_0"))
    run.response.take_new_items()
    run.step("Second.")
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in run.events:
        if event["type"] not in OURS:
            state.handle_event(adapter.validate_python(event))
    kinds = [one.type for one in state._completed_response.output]
    assert kinds == ["message", "function_call", "message"]
