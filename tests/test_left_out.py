"""left_out.py: histories in which hosted calls are missing, and what they are repeated from."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answers import Answers
from engine.backends.base import ReasoningDelta
from engine.hosted.fake import FakeHost, Played
from engine.items import Call, FunctionCall, FunctionCallOutput, Item, answer_key, item_id
from engine.left_out import with_left_out
from engine.made import is_internal
from engine.usage import Timing
from tests.machines import NOW, call, item, output, stop, user
from tests.served import FUNCTION, open_served
from tests.test_hosted_calls import HostedRun, drop, find
from tests.test_mixed_steps import text_of

SEARCH = item(type="web_search_call", action={"type": "search", "query": "tea"})


def ran(*deltas: Any, **fields: Any) -> HostedRun:
    """A run of which one step is over, and so are its hosted calls."""
    run = HostedRun(**{"lifecycle": "chain"} | fields).feed(*deltas)
    run.run_all()
    run.response.end_step(stop(), Timing(), NOW)
    return run


def repeated(run: HostedRun) -> list[Item]:
    """The run's context as a client sends it that knows of no hosted calls and leaves ids out."""
    return [without_id(one) for one in run.context if not is_internal(one)]


def without_id(one: Item) -> Item:
    return msgspec.structs.replace(one, id=msgspec.UNSET) if item_id(one) else one  # type: ignore[type-var]


def shape(items: list[Item]) -> list[str]:
    """Short: keys of calls and outputs, roles of messages."""
    return [
        one.call_id
        if isinstance(one, FunctionCall)
        else f"={answer_key(one)}"
        if isinstance(one, FunctionCallOutput)
        else getattr(one, "role", type(one).__name__)
        for one in items
    ]


def restored(run: HostedRun, items: list[Item]) -> list[str]:
    whole = with_left_out(items, run.context, run.response.answers)
    assert whole is not None
    return shape(whole.items)


def test_calls_and_outputs_are_put_back_in_their_places() -> None:  # P131
    run = ran("I look.", find("1"), call(), find("2"))
    new = [output("call_0", "mine"), user()]
    assert restored(run, [*repeated(run), *new]) == [
        *("user", "assistant", "hc_0", "call_0", "hc_1"),
        *("=hc_0", "=call_0", "=hc_1", "user"),
    ]
    whole = with_left_out([*repeated(run), *new], run.context, run.response.answers)
    assert whole is not None and whole.places == [0, 1, None, 2, None, None, 3, None, 4]
    told = [one.output for one in whole.items if isinstance(one, FunctionCallOutput)]
    assert told == ["found 1", "mine", "found 2"]


def test_earlier_steps_have_theirs_too() -> None:  # P131
    run = ran(find())
    run.response.take_new_items()
    run.feed("Found.")
    run.response.end_step(stop(), Timing(), NOW)
    assert restored(run, [*repeated(run), user()]) == ["user", "hc_0", "=hc_0", "assistant", "user"]


def test_reasoning_may_be_missing_or_other() -> None:
    run = ran(ReasoningDelta("Hm."), find(), call())
    other = item(type="reasoning", summary=[], encrypted_content="x")
    history = repeated(run)
    whole = ["user", "Reasoning", "hc_0", "call_0", "=hc_0", "=call_0"]
    without = [one for one in history if type(one).__name__ != "Reasoning"]
    replaced = [other if type(one).__name__ == "Reasoning" else one for one in history]
    for sent in (history, without, replaced):
        assert restored(run, [*sent, output("call_0")]) == whole


@pytest.mark.parametrize("place", [1, 2, 3])
def test_hosted_items_that_the_client_does_know_are_not_there_twice(place: int) -> None:
    run = ran("I look.", find(), call())
    run.response.answers.made(SEARCH)
    items = [*repeated(run), output("call_0")]
    items.insert(place, SEARCH)
    assert restored(run, items) == ["user", "assistant", "hc_0", "call_0", "=hc_0", "=call_0"]


def test_a_request_for_approval_that_nobody_knew_stays_away() -> None:
    run = ran(find(), drop(), call())
    items = [one for one in repeated(run) if not getattr(one, "server_label", None)]
    assert restored(run, [*items, output("call_1")]) == ["user", "hc_0", "call_1", "=hc_0", "=call_1"]


def test_what_is_not_that_history_stays_as_it_is() -> None:  # P131
    run = ran("I look.", find(), call())
    asked, said, made = repeated(run)
    answered = output("call_0")
    for items in (
        [],
        [user("other"), said, made, answered],
        [asked, item(role="assistant", content="I do not."), made, answered],
        [asked, made, answered],
        [asked, said, item(type="function_call", call_id="x", name="weather", arguments="{}"), output("x")],
        [asked, said],
    ):
        assert with_left_out(items, run.context, run.response.answers) is None


def test_nothing_is_put_back_where_nothing_was_hosted_or_a_call_was_cut() -> None:
    plain = ran("I look.", call())
    cut = HostedRun(lifecycle="chain").feed(find())
    cut.response.end("cancelled", NOW)
    for run in (plain, cut):
        items = [*repeated(run), user()]
        assert with_left_out(items, run.context, run.response.answers) is None


@st.composite
def contexts(draw: st.DrawFn) -> list[Item]:
    """Steps of messages and calls, hosted and not, each with its outputs."""
    items: list[Item] = []
    for number in range(draw(st.integers(1, 5))):
        items += [user(f"{number}")]
        keys = [f"{kind}_{number}{place}" for place, kind in enumerate(draw(st.lists(st.sampled_from(["hc", "c"]))))]
        items += [item(type="function_call", call_id=key, name="f", arguments="{}") for key in keys]
        items += [output(key) for key in keys]
        if draw(st.booleans()):
            items += [item(role="assistant", content=f"said {number}", id=f"msg_{number}")]
    return items


@given(contexts())
def test_any_context_comes_back_whole(context: list[Item]) -> None:  # P131
    items = [*(without_id(one) for one in context if not is_internal(one)), user()]
    found = with_left_out(items, context, Answers(100))
    has_hosted = any(is_internal(one) for one in context if isinstance(one, Call))
    assert (found and shape(found.items)) == (shape([*context, user()]) if has_hosted else None)


HOSTED = """
model: test
steps:
  - calls: [{name: find, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - text: "{outputs}"
"""


@pytest.mark.parametrize("lifecycle", ["append", "chain"])
async def test_a_lane_gives_them_back_and_another_connection_cannot(lifecycle: str) -> None:  # P131
    host = FakeHost({"find": Played(output="found")})
    asked: dict[str, Any] = {"tools": [FUNCTION, {"type": "mcp", "server_label": "fake"}]}
    async with open_served(HOSTED, hosts={"mcp": host}, tools=["fake"], lifecycle=lifecycle) as served:
        async with served.connect() as client:
            await client.create(**asked)
            made = [frame["item"] for frame in await client.step() if frame["type"] == "response.output_item.done"]
            (own,) = [one for one in made if one["type"] == "function_call"]
            answer = {"type": "function_call_output", "call_id": own["call_id"], "output": "a window"}
            asked["input"] = [{"role": "user", "content": "go"}, own, answer]
            await client.create(**asked | {"input": [*asked["input"], answer | {"call_id": "other"}]})
            assert (await client.step())[-1]["error"]["param"] == "input[3].call_id"
            await client.create(**asked)
            assert text_of((await client.step())[-1]["response"]) == "found\na window"
        async with served.connect() as client:
            await client.create(**asked)
            assert text_of((await client.step())[-1]["response"]) == "a window"
    assert len(host.calls) == 1
