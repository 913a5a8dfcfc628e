"""Hosted items and their events, as openai-python's own types read them: strictly, with every required field."""

import json
from typing import Any

import pytest

from engine.errors import ServerError
from engine.hosted.base import HostedResult, Listed, failed
from engine.hosted_events import McpListToolsCompleted, McpListToolsFailed, McpListToolsInProgress
from tests.machines import NOW, call, output
from tests.test_hosted_calls import HostedRun, approval, drop, find

pytestmark = pytest.mark.peer


def _listed(error: str | None) -> Listed:
    begun: dict[str, Any] = {"type": "mcp_list_tools", "server_label": "docs", "tools": []}
    tool = {"name": "find", "input_schema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    ended = begun | ({"error": error} if error else {"tools": [tool]})
    return Listed(
        "mcpl", begun, ended, [McpListToolsInProgress, McpListToolsFailed if error else McpListToolsCompleted]
    )


def everything() -> list[dict[str, Any]]:
    """The events of a run in which all happens that can happen to hosted calls."""
    run = HostedRun()
    run.response.hosted.add_listed(_listed(None))
    run.response.hosted.add_listed(_listed("no"))
    run.feed("First.", find('{"q":1}'), call(), find("{}"))
    good, bad = run.response.hosted.take_to_run()
    run.response.hosted.finish(bad, failed("no"))
    run.response.hosted.finish(good, HostedResult("yes"))
    run.step(drop())
    run.append(output("call_0"), approval("mcpr_0"))
    run.response.begin_approved()
    run.response.hosted.take_to_run()
    run.response.fail(ServerError("no"), NOW)  # cuts the approved one
    return run.events


def test_every_event_is_one_of_openais() -> None:  # P120, P126, P127
    from openai.types.responses import ResponseStreamEvent  # without the package this is not selected
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(ResponseStreamEvent)
    seen = set()
    for event in everything():
        if event["type"] != "response.done":
            assert adapter.validate_json(json.dumps(event), strict=True).type == event["type"]
            seen.add(event["type"].removeprefix("response."))
    assert {name for name in seen if name.startswith("mcp")} == {
        *("mcp_call.in_progress", "mcp_call.completed", "mcp_call.failed"),
        *("mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_list_tools.failed"),
    }


def test_the_sdks_accumulator_takes_items_that_end_in_any_order() -> None:
    from openai import omit  # as above
    from openai.lib.streaming.responses._responses import ResponseStreamState
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(ResponseStreamEvent)
    run = HostedRun(lifecycle="chain").feed("First.", find("1"), find("2"), call())
    first, second = run.response.hosted.take_to_run()
    run.response.hosted.finish(second, HostedResult("two"))
    run.response.hosted.finish(first, HostedResult("one"))
    run.step()
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in run.events:
        state.handle_event(adapter.validate_python(event))
    assert [item.type for item in state._completed_response.output] == [
        *("message", "mcp_call", "mcp_call", "function_call"),
    ]


def test_the_sdks_accumulator_parses_structured_output_behind_a_hosted_call() -> None:  # openai/openai-python#2852
    from openai import omit  # as above
    from openai.lib.streaming.responses._responses import ResponseStreamState
    from openai.types.responses import ResponseStreamEvent
    from pydantic import BaseModel, TypeAdapter

    class Found(BaseModel):
        count: int

    adapter: Any = TypeAdapter(ResponseStreamEvent)
    run = HostedRun(lifecycle="chain").feed(find("1"))
    (found,) = run.response.hosted.take_to_run()
    run.response.hosted.finish(found, HostedResult("one"))
    run.step()
    run.response.take_new_items()
    run.step('{"count"', ": 1}")
    state: Any = ResponseStreamState(input_tools=omit, text_format=Found)
    for event in run.events:
        state.handle_event(adapter.validate_python(event))
    response = state._completed_response
    assert [item.type for item in response.output] == ["mcp_call", "message"]
    assert response.output_parsed == Found(count=1)
