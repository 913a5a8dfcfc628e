"""The context of a run as items, shared between the runs that go on from it."""

from engine.content import OutputText
from engine.folded import fold_item
from engine.history import Lineage, Round
from engine.items import FunctionCall, Item, Message
from engine.scaffold_message import MessageScaffold

CALL = FunctionCall(call_id="c1", name="look", arguments="{}")


def user(text: str) -> Item:
    return Message(role="user", content=text)


def test_rounds_read_in_order_with_what_was_made_after_what_was_given() -> None:
    said = fold_item(MessageScaffold(0, "msg_1"), ["Hel", "lo"], "completed")
    first = Round(None, [user("a")], [said, CALL])
    second = Round(first, [user("b"), user("c")])
    assert second.items() == [
        user("a"),
        Message(role="assistant", content=[OutputText(text="Hello")], id="msg_1", status="completed"),
        CALL,
        user("b"),
        user("c"),
    ]


def test_two_rounds_may_follow_one() -> None:
    first = Round(None, [user("a")])
    one, other = Round(first, [user("b")]), Round(first, [user("c")])
    assert one.items() == [user("a"), user("b")]
    assert other.items() == [user("a"), user("c")]


def test_what_was_given_last_is_all_since_the_model_has_finished_something() -> None:
    first = Round(None, [user("a")], [CALL])
    second = Round(first, [user("b")])
    third = Round(second, [user("c"), user("d")])
    assert first.given_last() == []
    assert third.given_last() == [user("b"), user("c"), user("d")]
    third.made.append(CALL)
    assert third.given_last() == []


def test_a_long_history_is_no_deep_recursion() -> None:
    node = None
    for number in range(20_000):
        node = Round(node, [user(str(number))])
    assert len(node.items()) == len(node.given_last()) == 20_000
    del node  # nor is letting go of it


def test_a_lineage_has_its_run_and_all_before_it() -> None:
    first = Lineage("a")
    second, other = Lineage("b", first), Lineage("c", first)
    assert [one for one in "abc" if second.has(one)] == ["a", "b"]
    assert [one for one in "abc" if other.has(one)] == ["a", "c"]
