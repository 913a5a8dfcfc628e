"""hosted_calls.py: a run's hosted calls as its machine has them, without anybody who runs them."""

from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, ToolChoice
from engine.hosted.base import HostedCall, HostedResult, failed
from engine.items import FunctionCall, FunctionCallOutput, Hosted, Item, McpApprovalRequest
from engine.made import is_internal
from engine.response import Response
from engine.status import Status
from engine.toolspec import Tool
from engine.usage import Timing
from tests.machines import NOW, SEALER, SETTINGS, WEATHER, Run, call, counting_ids, item, output, request, stop

FIND = Tool("function", "find", parameters={"type": "object"}, namespace="docs", hosted="mcp_call")
DROP = Tool("function", "drop", parameters={"type": "object"}, namespace="docs", hosted="mcp_call", needs_approval=True)


class HostedRun(Run):
    """A run with a client's tool, a hosted one, and one that needs approval."""

    def __init__(self, **fields: Any) -> None:
        asked = request(tools=[WEATHER], **fields)
        asked = msgspec.structs.replace(asked, tools=[*asked.tools, FIND, DROP])
        self.response = Response("resp_0", asked, SETTINGS, counting_ids(), NOW, sealer=SEALER)
        self.live = []
        self._decoded = []
        self.listen()
        self.response.start()

    def run_all(self, text: str = "found") -> list[HostedCall]:
        """Run what is to be run."""
        calls = self.response.hosted.take_to_run()
        for one in calls:
            self.response.hosted.finish(one, HostedResult(f"{text} {one.arguments}"))
        return calls

    @property
    def context(self) -> list[Item]:
        newest = self.response.round
        assert newest is not None
        return newest.items()


def find(arguments: str = "{}") -> list[Any]:
    _, *rest = call(arguments)
    return [CallStart("function_call", "find", "docs"), *rest]


def drop(arguments: str = '{"n":1}') -> list[Any]:
    _, *rest = call(arguments)
    return [CallStart("function_call", "drop", "docs"), *rest]


def approval(key: str, *, approve: bool = True, **fields: Any) -> Item:
    return item(type="mcp_approval_response", approval_request_id=key, approve=approve, **fields)


def test_run_goes_on_with_the_outputs_in_the_order_of_the_calls() -> None:
    run = HostedRun().feed("I look.", find("1"), call(), find("2"))
    first, second = run.response.hosted.take_to_run()
    run.response.hosted.finish(second, HostedResult("two"))
    run.append(output("call_0", "mine"))
    assert run.response.answers.is_unsettled
    run.response.hosted.finish(first, HostedResult("one"))
    assert not run.response.answers.is_unsettled
    run.response.end_step(stop(), Timing(), NOW)
    assert run.response.status is Status.IN_PROGRESS
    given = run.response.take_new_items()
    assert [one.output for one in given if isinstance(one, FunctionCallOutput)] == ["one", "mine", "two"]


def test_items_have_their_places_however_they_end() -> None:
    run = HostedRun().feed(find("1"), "between", call(), find("2"))
    first, second = run.response.hosted.take_to_run()
    run.response.hosted.finish(second, HostedResult("two"))
    run.feed("more")
    run.response.hosted.finish(first, HostedResult("one"))
    run.response.end_step(stop(), Timing(), NOW)
    added = {event["output_index"]: event["item"]["id"] for event in run.events if event["type"].endswith("added")
             and "item" in event}  # fmt: skip
    done = {event["output_index"]: event["item"]["id"] for event in run.events if event["type"].endswith("item.done")}
    assert added == done
    output_ids = [one.data["id"] if isinstance(one, Hosted) else one.id for one in run.response.output]  # type: ignore[union-attr]
    assert output_ids == [done[index] for index in range(5)]
    assert run.replayed() == run.live


def test_context_has_the_call_and_its_output_and_clients_its_item() -> None:
    run = HostedRun(lifecycle="chain").feed(find("1"))
    run.run_all()
    run.response.end_step(stop(), Timing(), NOW)
    run.response.take_new_items()
    _, made, given = run.context
    assert made == FunctionCall(call_id="hc_0", name="find", arguments="1", namespace="docs")
    assert given == FunctionCallOutput(call_id="hc_0", output="found 1")
    assert is_internal(made)
    assert is_internal(given)
    assert run.response.round is not None
    assert [type(one) for one in run.response.round.shown()][1:] == [Hosted]


def test_client_cannot_answer_a_hosted_call() -> None:
    run = HostedRun().feed(find())
    with pytest.raises(Exception, match="No tool call found"):
        run.append(output("hc_0"))


@pytest.mark.parametrize("approve", [True, False])
def test_call_that_needs_approval_asks_for_it(approve: bool) -> None:
    run = HostedRun().step(drop())
    assert run.response.status is Status.PAUSED
    (asked,) = run.response.output
    assert asked == McpApprovalRequest(id="mcpr_0", name="drop", arguments='{"n":1}', server_label="docs")
    assert run.last["response"]["pending"][0]["answer_type"] == "mcp_approval_response"
    assert run.append(approval("mcpr_0", approve=approve, reason="too dear"))
    run.response.begin_approved()
    assert run.response.answers.is_unsettled is approve
    calls = run.run_all()
    assert len(calls) == approve
    (given,) = run.response.take_new_items()
    assert isinstance(given, FunctionCallOutput)
    assert given.call_id == "mcpr_0"
    denied = "The user did not approve this call, so it was not made. too dear"
    assert given.output == ('found {"n":1}' if approve else denied)
    if approve:
        done = run.response.output[-1]
        assert isinstance(done, Hosted)
        assert (done.data["approval_request_id"], done.data["arguments"]) == ("mcpr_0", '{"n":1}')


def test_approved_call_begins_once() -> None:
    run = HostedRun().step(drop(), call())
    assert not run.append(approval("mcpr_0"))
    run.response.begin_approved()
    run.response.begin_approved()
    assert len(run.response.hosted.take_to_run()) == 1


def test_limit_refuses_what_is_beyond_it_and_then_ends_the_run() -> None:
    run = HostedRun(max_tool_calls=1).feed(find(), find())
    assert len(run.run_all()) == 1
    run.response.end_step(stop(), Timing(), NOW)
    one, other = run.response.take_new_items()
    assert isinstance(one, FunctionCallOutput)
    assert isinstance(other, FunctionCallOutput)
    assert one.output == "found {}"
    assert "1 calls of hosted tools" in str(other.output)
    assert run.response.step_spec().tool_choice == ToolChoice("auto", frozenset({"weather"}))
    run.step(find())
    assert run.last["type"] == "response.incomplete"
    assert run.last["response"]["incomplete_details"] == {"reason": "max_tool_calls"}


def test_model_with_nothing_else_to_call_is_offered_nothing() -> None:
    run = HostedRun(max_tool_calls=1)
    hosted = run.response.hosted
    hosted._offered = [tool for tool in hosted._offered if tool.hosted]
    run.feed(find())
    assert run.response.step_spec().tool_choice == ToolChoice("none")


def test_end_of_the_run_cuts_what_is_under_way() -> None:
    run = HostedRun().feed(find("1"))
    (cut,) = run.response.hosted.take_to_run()
    run.feed(find("2")[:2])
    run.response.end("cancelled", NOW)
    assert [one.data["status"] for one in run.response.output if isinstance(one, Hosted)] == ["incomplete"] * 2
    assert run.last["type"] == "response.incomplete"
    run.response.hosted.tell(cut, lambda **fields: pytest.fail("nothing is logged of a call that was cut"))


def test_failed_call_has_no_output() -> None:
    run = HostedRun().feed(find())
    (one,) = run.response.hosted.take_to_run()
    run.response.hosted.finish(one, failed("no"))
    (made,) = run.response.output
    assert isinstance(made, Hosted)
    assert (made.data["status"], made.data["error"]["content"], "output" in made.data) == (
        *("failed", [{"type": "text", "text": "no"}]),
        False,
    )
