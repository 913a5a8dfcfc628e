"""Every event, as openai-python's own types read it: strictly, with every required field and no stray null."""

import json
from typing import Any

import pytest

from engine.backends.base import ReasoningDelta
from tests.all_events import OURS, TOOLS, agent_events, all_kinds_of_events
from tests.machines import Run, call, output

pytestmark = pytest.mark.peer

EVENTS = all_kinds_of_events()


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
            parsed = adapter.validate_json(json.dumps(event), strict=True)
            assert parsed.type == type_
            assert parsed.sequence_number == event["sequence_number"]


def test_an_agents_events_are_the_betas(adapter: Any) -> None:
    from openai.types.beta import BetaResponseInjectCreatedEvent, BetaResponseStreamEvent  # as above
    from pydantic import TypeAdapter

    beta: Any = TypeAdapter(BetaResponseStreamEvent | BetaResponseInjectCreatedEvent)
    said = {str(beta.validate_json(json.dumps(event), strict=True).type) for event in agent_events()}
    assert "response.completed" in said


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
