"""What a run's input must be to go on from another run."""

import pytest

from engine.answers import Answers
from engine.content import OutputText
from engine.continuation import check_input
from engine.errors import RequestError
from engine.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    LocalShellCallOutput,
    Message,
    Reasoning,
    ToolSearchCall,
)

USER = Message(role="user", content="hi")
CALL = FunctionCall(id="fc_1", call_id="c1", name="look", arguments="{}")
OTHER_CALL = FunctionCall(id="fc_2", call_id="c2", name="look", arguments="{}")
SAID = Message(role="assistant", id="msg_1", content=[OutputText(text="I look.")])


def output(key: str, text: str = "out") -> FunctionCallOutput:
    return FunctionCallOutput(call_id=key, output=text)


def before() -> Answers:
    """A run that said something and made two calls."""
    answers = Answers(1000)
    for item in (SAID, CALL, OTHER_CALL):
        answers.made(item)
    answers.called(CALL)
    answers.called(OTHER_CALL)
    return answers


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([output("c1"), output("c2")], [output("c1"), output("c2")]),
        ([output("c2"), output("c1")], [output("c1"), output("c2")]),
        ([USER, output("c2"), output("c1")], [output("c1"), output("c2"), USER]),
        ([SAID, CALL, OTHER_CALL, output("c1"), output("c2")], [output("c1"), output("c2")]),
        ([output("c1"), output("c1"), output("c2")], [output("c1"), output("c2")]),
        ([Message(role="assistant", content="I look."), output("c1"), output("c2")], [output("c1"), output("c2")]),
    ],
)
def test_what_is_new_is_kept_with_outputs_in_call_order(given: list[Item], kept: list[Item]) -> None:  # P45
    assert check_input(given, before()).items == kept


def test_the_clients_own_assistant_messages_and_reasoning_are_kept() -> None:
    own = [Message(role="assistant", content="By the way."), Reasoning(id="rs_x")]
    assert check_input([output("c1"), output("c2"), *own], before()).items[2:] == own


def test_calls_and_outputs_of_one_input_belong_together() -> None:
    items = [USER, CALL, output("c1"), USER]
    assert check_input(items, None).items == items


@pytest.mark.parametrize(
    ("given", "earlier", "message", "param"),
    [
        ([output("c1")], False, "No tool call found for function call output with call_id c1", "input[0].call_id"),
        ([USER, CALL], False, "No tool output found for function call c1", "input"),
        ([output("c1"), CALL], False, "No tool call found", "input[0].call_id"),
        ([output("c1"), output("c1", "else")], True, "answered already", "input[1].call_id"),
        ([CALL, output("c1"), output("c1", "else")], False, "answered already", "input[2].call_id"),
        ([output("c1")], True, "No tool output found for function call c2", "input"),
        ([USER], True, "No tool output found for function call c1", "input"),
        ([LocalShellCallOutput(output="x")], False, "names no call", "input[0].call_id"),
        ([LocalShellCallOutput(call_id="c1", output="x")], True, "is a function_call", "input[0].type"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: list[Item], earlier: bool, message: str, param: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_input(given, before() if earlier else None)
    assert caught.value.param == param


def test_an_answer_that_was_given_before_is_dropped_and_another_is_refused() -> None:  # P45
    first = before()
    checked = check_input([output("c1", "a"), output("c2", "b")], first)
    second = Answers(1000, first)
    second.answered(checked.answered)
    third = Answers(1000, second)  # however far back it was
    assert check_input([output("c1", "a"), USER], third).items == [USER]
    with pytest.raises(RequestError, match="answered already"):
        check_input([output("c1", "changed")], third)


def test_two_that_go_on_from_the_same_run_do_not_know_of_each_other() -> None:
    first = before()
    one, other = Answers(1000, first), Answers(1000, first)
    one.answered(check_input([output("c1", "a"), output("c2", "b")], first).answered)
    one.called(FunctionCall(call_id="c3", name="look", arguments="{}"))
    checked = check_input([output("c1", "x"), output("c2", "y")], first)
    assert list(checked.answered) == ["c1", "c2"]
    with pytest.raises(RequestError, match="No tool call found"):
        check_input([output("c3")], other)


def test_a_search_that_the_server_makes_needs_no_output() -> None:
    search = ToolSearchCall(arguments={}, call_id="s1", execution="server")
    assert check_input([search], None).items == [search]


CUT = FunctionCall(id="fc_3", call_id="c3", name="look", arguments='{"at": "se', status="incomplete")


@pytest.mark.parametrize("first", [None, before()])
def test_a_call_that_was_cut_needs_no_output_and_is_left_out(first: Answers | None) -> None:  # P29
    outputs = [output("c1"), output("c2")] if first else []
    assert check_input([USER, CUT, *outputs, SAID], first).items[len(outputs) :] == ([USER] if first else [USER, SAID])


def test_a_call_that_was_cut_is_kept_where_it_has_an_output() -> None:
    items: list[Item] = [USER, CUT, output("c3", "interrupted")]
    assert check_input(items, None).items == items
