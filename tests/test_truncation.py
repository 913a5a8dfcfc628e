"""What is left out of an input that does not fit."""

from engine.items import FunctionCall, FunctionCallOutput, Item, Message
from engine.truncation import droppable_units, without_oldest


def user(text: str) -> Item:
    return Message(role="user", content=text)


RULES = Message(role="developer", content="Be brief.")
CALL = FunctionCall(call_id="c1", name="look", arguments="{}")
OUTPUT = FunctionCallOutput(call_id="c1", output="seen")


def test_the_oldest_go_first_and_the_newest_stays() -> None:
    items = [user("a"), user("b"), user("c")]
    units = droppable_units(items)
    assert units == [[0], [1]]
    assert without_oldest(items, units, 1) == items[1:]
    assert without_oldest(items, units, 2) == items[2:]


def test_what_says_how_to_answer_stays() -> None:
    items = [RULES, user("a"), user("b")]
    assert droppable_units(items) == [[1]]


def test_a_call_goes_with_its_output() -> None:
    items = [user("a"), CALL, user("b"), OUTPUT, user("c")]
    units = droppable_units(items)
    assert units == [[0], [1, 3], [2]]
    assert without_oldest(items, units, 2) == [user("b"), user("c")]


def test_the_call_of_the_newest_output_stays() -> None:
    assert droppable_units([user("a"), CALL, OUTPUT]) == [[0]]


def test_nothing_can_be_dropped_of_nothing() -> None:
    assert droppable_units([]) == []
    assert droppable_units([user("a")]) == []
