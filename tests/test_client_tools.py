"""The runner of tools alone: every call gets exactly one output, whatever happens to it."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio

from engine.client_outbox import Outbox
from engine.client_tools import ToolCall, ToolOutcome, ToolRunner
from engine.client_wire import Event
from engine.customtool import custom_tool
from engine.toolschema import FunctionTool


async def look(n: int = 0) -> str:
    """Look."""
    await trio.sleep(2)
    return f"seen {n}"


async def burst() -> None:
    """Fail."""
    raise LookupError("no such place")


async def hang() -> None:
    """Never answer."""
    await trio.sleep_forever()


@custom_tool
async def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


async def count() -> AsyncIterator[str]:
    for word in ("one ", "two"):
        yield word
        await trio.sleep(1)


TOOLS = [FunctionTool(look), FunctionTool(burst), FunctionTool(hang), shout, FunctionTool(count)]


class Desk:
    """A runner with what it did: items sent, when there was something to send, calls and outcomes."""

    def __init__(self, **options: Any) -> None:
        self.outbox = Outbox()
        self.sent: list[dict[str, Any]] = []
        self.ready_at: list[float] = []
        self.calls: list[ToolCall] = []
        self.outcomes: list[ToolOutcome] = []
        observers: dict[str, Any] = {"on_tool_call": self.calls.append, "on_tool_output": self.outcomes.append}
        self.runner = ToolRunner(TOOLS, self.outbox, on_ready=self._ready, **(observers | options))

    def _ready(self) -> None:
        self.ready_at.append(trio.current_time())
        self.sent += [msgspec.to_builtins(item) for item in self.outbox.take()]

    async def answer(self, kind: str = "function_call", **fields: Any) -> dict[str, Any]:
        """Run one call; the item that answers it, or its last part."""
        item = Event({"type": kind, "id": "item_1", "call_id": "c0", **fields})
        await self.runner.answer(item)
        return self.sent[-1]


async def test_function_is_run_with_the_models_arguments(autojump_clock):
    desk = Desk()
    answer = await desk.answer(name="look", arguments='{"n": 3}')
    assert (answer["type"], answer["call_id"], answer["output"]) == ("function_call_output", "c0", "seen 3")
    assert [(call.key, call.name, call.arguments) for call in desk.calls] == [("c0", "look", '{"n": 3}')]
    assert [(o.output, o.is_error, o.duration_s) for o in desk.outcomes] == [("seen 3", False, pytest.approx(2))]


async def test_custom_tool_is_run_with_the_models_text():
    answer = await Desk().answer("custom_tool_call", name="shout", input="a {b")
    assert (answer["type"], answer["output"]) == ("custom_tool_call_output", "A {B")


async def test_pieces_are_ready_as_they_come(autojump_clock):
    desk, begun_at = Desk(), trio.current_time()
    await desk.answer(name="count", arguments="")
    assert [at - begun_at for at in desk.ready_at] == [0, 1, 2]
    assert [(part["output"], part["offset"], part["status"]) for part in desk.sent] == [
        ("one ", 0, "in_progress"),
        ("two", 4, "in_progress"),
        ("", 7, "completed"),
    ]
    assert [(outcome.output, outcome.is_error) for outcome in desk.outcomes] == [("one two", False)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "burst", "arguments": "{}"}, "burst failed: LookupError: no such place"),
        ({"name": "look", "arguments": '{"n": "x"}'}, "Invalid arguments for look: n: Input should be a valid integer"),
        ({"name": "look", "arguments": "{"}, "Invalid arguments for look: Invalid JSON"),
        ({"name": "see", "arguments": "{}"}, "There is no tool named 'see'. Tools: look, burst, hang, shout, count."),
        ({"name": "hang", "arguments": "{}"}, "hang did not finish within 9 s."),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(autojump_clock, caplog, fields, said):
    desk = Desk(deadline_s=9)
    answer = await desk.answer(**fields)
    assert answer["output"].startswith(said)
    assert [outcome.is_error for outcome in desk.outcomes] == [True]
    assert len(desk.sent) == 1


async def test_own_deadline_of_a_tool_wins(autojump_clock):
    outbox = Outbox()
    runner = ToolRunner([FunctionTool(hang, deadline_s=3)], outbox, deadline_s=9, on_ready=lambda: None)
    await runner.answer(Event({"type": "function_call", "call_id": "c0", "name": "hang", "arguments": "{}"}))
    assert [item.output for item in outbox.take()] == ["hang did not finish within 3 s."]


async def test_without_tools_the_model_is_told_that_there_are_none():
    outbox = Outbox()
    await ToolRunner([], outbox, on_ready=lambda: None).answer(Event({"type": "function_call", "name": "x"}))
    assert [item.output for item in outbox.take()] == ["There is no tool named 'x'. Tools: none."]


@pytest.mark.parametrize("kind", ["local_shell_call", "computer_call", "tool_search_call"])
async def test_call_without_a_name_is_known_by_its_kind(kind):
    desk = Desk()
    answer = await desk.answer(kind, action={"type": "exec"}, arguments={"query": "x"})
    assert f"There is no tool named '{kind.removesuffix('_call')}'" in answer["output"]
    assert desk.calls[0].arguments == ""


async def test_call_without_a_call_id_is_answered_by_its_id():
    desk = Desk()
    await desk.runner.answer(Event({"type": "function_call", "id": "item_1", "name": "look", "arguments": "{}"}))
    assert desk.sent[0]["call_id"] == "item_1"


async def test_approval_is_refused_without_running_anything(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    answer = await desk.answer("mcp_approval_request", id="r1", name="pay", arguments="{}")
    assert (answer["type"], answer["approval_request_id"], answer["approve"]) == ("mcp_approval_response", "r1", False)
    assert (desk.calls, desk.outcomes) == ([], [])
    assert caplog.messages == ["pay needs approval and is not made; `approve` decides on such calls"]


async def test_approval_is_given_by_whom_the_client_asks():
    asked = []

    async def approve(call):
        asked.append((call.name, call.arguments))
        return call.name == "look"

    desk = Desk(approve=approve)
    for name in ("look", "pay"):
        await desk.answer("mcp_approval_request", id=name, name=name, arguments="{}")
    assert [(item["approval_request_id"], item["approve"]) for item in desk.sent] == [("look", True), ("pay", False)]
    assert asked == [("look", "{}"), ("pay", "{}")]
    assert "reason" not in desk.sent[0]


async def test_calls_run_side_by_side(autojump_clock):
    desk, begun_at = Desk(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for key in "abc":
            item = Event({"type": "function_call", "call_id": key, "name": "look", "arguments": "{}"})
            nursery.start_soon(desk.runner.answer, item)
    assert trio.current_time() - begun_at == pytest.approx(2)
    assert sorted(item["call_id"] for item in desk.sent) == ["a", "b", "c"]


async def test_exception_of_an_observer_comes_out():
    def complain(call: ToolCall) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Desk(on_tool_call=complain).answer(name="look", arguments="{}")


def test_two_tools_of_one_name_are_refused_and_one_tool_twice_is_not():
    tool = FunctionTool(look)
    ToolRunner([tool, tool], Outbox(), on_ready=lambda: None)
    with pytest.raises(ValueError, match="two tools are named look"):
        ToolRunner([tool, FunctionTool(look)], Outbox(), on_ready=lambda: None)


# --- calls that never were ---------------------------------------------------------------------------------------


async def test_a_dropped_call_is_stopped_and_not_answered(autojump_clock):
    desk = Desk()
    async with trio.open_nursery() as nursery:
        call = Event({"type": "function_call", "call_id": "c0", "name": "hang", "arguments": "{}"})
        nursery.start_soon(desk.runner.answer, call)
        await trio.testing.wait_all_tasks_blocked()
        desk.runner.drop(["c0", "c9"])
    assert (len(desk.calls), desk.sent, desk.outcomes) == (1, [], [])


@pytest.mark.parametrize("name", ["hang", "see"])
async def test_a_call_that_is_dropped_before_it_begins_is_not_answered(name):
    desk = Desk()
    desk.runner.drop(["c0"])
    await desk.runner.answer(Event({"type": "function_call", "call_id": "c0", "name": name, "arguments": "{}"}))
    assert desk.sent == []


async def test_what_a_dropped_call_still_says_is_not_sent(autojump_clock):
    async def stubborn() -> AsyncIterator[str]:
        yield "one"
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        yield "two"

    sent: list[Any] = []
    outbox = Outbox()
    runner = ToolRunner([FunctionTool(stubborn)], outbox, on_ready=lambda: sent.extend(outbox.take()))
    call = Event({"type": "function_call", "call_id": "c0", "name": "stubborn", "arguments": "{}"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.answer, call)
        await trio.testing.wait_all_tasks_blocked()
        runner.drop(["c0"])
    assert [item.output for item in sent] == ["one"]
