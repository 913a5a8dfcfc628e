"""What the client has to say: outputs whole or in parts, in the order in which they became ready."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client_outbox import AnswerType, Outbox, key_of, shortened, user_message
from engine.content import InputText
from engine.items import CustomToolCallOutput, FunctionCallOutput, McpApprovalResponse

FUNCTION: AnswerType = "function_call_output"
CUSTOM: AnswerType = "custom_tool_call_output"


def taken(outbox: Outbox) -> list[tuple[Any, ...]]:
    """What is sent now: key, output, offset and status of each item."""
    items = [msgspec.to_builtins(item) for item in outbox.take()]
    return [(item["call_id"], item["output"], item.get("offset"), item.get("status")) for item in items]


def test_output_without_parts_is_sent_whole_and_once():
    outbox = Outbox()
    outbox.finish("a", FUNCTION, "done")
    assert taken(outbox) == [("a", "done", None, None)]
    assert taken(outbox) == []


def test_output_that_is_no_text_is_sent_as_it_is():
    outbox, parts = Outbox(), [InputText(text="x")]
    outbox.finish("a", FUNCTION, parts)
    (item,) = outbox.take()
    assert item == FunctionCallOutput(call_id="a", output=parts)


@pytest.mark.parametrize(("answer_type", "kind"), [(FUNCTION, FunctionCallOutput), (CUSTOM, CustomToolCallOutput)])
def test_each_kind_of_call_gets_its_kind_of_output_also_in_parts(answer_type, kind):
    outbox = Outbox()
    outbox.add_piece("a", answer_type, "x")
    first = outbox.take()
    outbox.finish("a", answer_type, "x")
    assert [type(item) for item in (*first, *outbox.take())] == [kind, kind]


def test_pieces_that_pile_up_are_one_part():
    outbox = Outbox()
    outbox.add_piece("a", FUNCTION, "one ")
    outbox.add_piece("a", FUNCTION, "two ")
    assert taken(outbox) == [("a", "one two ", 0, "in_progress")]
    outbox.add_piece("a", FUNCTION, "three")
    assert taken(outbox) == [("a", "three", 8, "in_progress")]
    outbox.finish("a", FUNCTION, "one two three")
    assert taken(outbox) == [("a", "", 13, "completed")]


def test_output_that_ends_before_its_pieces_were_sent_is_whole():
    outbox = Outbox()
    outbox.add_piece("a", FUNCTION, "one ")
    outbox.add_piece("a", FUNCTION, "two")
    outbox.finish("a", FUNCTION, "one two")
    assert taken(outbox) == [("a", "one two", None, None)]


def test_empty_pieces_are_no_reason_to_send():
    outbox = Outbox()
    outbox.add_piece("a", FUNCTION, "")
    assert taken(outbox) == []


@pytest.mark.parametrize(
    ("pieces", "is_sent", "expected"),
    [
        ([], False, ("a", "broke", None, None)),
        (["begun"], False, ("a", "begun\nbroke", None, None)),
        (["begun"], True, ("a", "\nbroke", 5, "completed")),
    ],
)
def test_failure_comes_after_what_there_was(pieces, is_sent, expected):
    outbox = Outbox()
    for piece in pieces:
        outbox.add_piece("a", FUNCTION, piece)
    if is_sent:
        outbox.take()
    outbox.fail("a", FUNCTION, "broke")
    assert taken(outbox) == [expected]


def test_everything_ready_goes_out_together_in_the_order_of_readiness_and_messages_last():
    outbox = Outbox()
    outbox.add(user_message("and?"))
    for key in "ba":
        outbox.finish(key, FUNCTION, key)
    outbox.add_piece("c", FUNCTION, "c")
    assert [key_of(item) for item in outbox.take()] == ["b", "a", "c", None]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["one ", "two\n", "", "é"])) | st.just("send"), max_size=30
    ),
    st.booleans(),
)
def test_any_order_of_pieces_and_sends_gives_the_whole_of_each_output(acts, fails):
    outbox, said, heard, ended = Outbox(), {"a": "", "b": ""}, {"a": "", "b": ""}, []

    def hear() -> None:
        for key, text, offset, status in taken(outbox):
            assert key not in ended
            assert len(heard[key]) == (offset or 0)
            heard[key] += text
            if status != "in_progress":
                ended.append(key)

    for act in acts:
        if act == "send":
            hear()
        else:
            key, piece = act
            outbox.add_piece(key, FUNCTION, piece)
            said[key] += piece
    if fails:
        outbox.fail("a", FUNCTION, "broke")
        said["a"] += "\nbroke" if said["a"] else "broke"
    else:
        outbox.finish("a", FUNCTION, said["a"])
    outbox.finish("b", FUNCTION, said["b"])
    hear()
    assert (heard, sorted(ended)) == (said, ["a", "b"])


def test_lone_surrogates_are_replaced_wherever_text_comes_in():
    outbox = Outbox()
    outbox.add_piece("a", FUNCTION, "x\udc80")
    outbox.finish("b", FUNCTION, "y\udc80")
    assert [text for _, text, _, _ in taken(outbox)] == ["x?", "y?"]
    assert msgspec.json.encode(user_message("\ud800"))


def test_shortened_says_how_long_it_was_and_leaves_the_rest_alone():
    for kind in (FunctionCallOutput, CustomToolCallOutput):
        short = shortened(kind(call_id="a", output="x" * 5000))
        assert type(short) is kind
        assert "5000 characters" in short.output
    for item in (
        FunctionCallOutput(call_id="a", output="rest", offset=9, status="completed"),  # its beginning was taken
        McpApprovalResponse(approval_request_id="r", approve=False),
        user_message("hi"),
    ):
        assert shortened(item) is item


def test_answer_is_known_by_its_key():
    assert key_of(McpApprovalResponse(approval_request_id="r", approve=True)) == "r"
    assert key_of(FunctionCallOutput(call_id="a", output="")) == "a"
    assert key_of(user_message("x")) is None


# --- given again -------------------------------------------------------------------------------------------------


def kept() -> Outbox:
    outbox = Outbox()
    outbox.is_kept = True
    return outbox


def test_what_was_sent_is_given_again_whole_if_it_is_wanted():
    outbox = kept()
    outbox.finish("a", FUNCTION, "one")
    outbox.add_piece("b", FUNCTION, "two ")
    outbox.take()
    outbox.add_piece("b", FUNCTION, "three")
    outbox.finish("b", FUNCTION, "two three")
    outbox.fail("c", FUNCTION, "broke")
    outbox.take()
    for _ in range(2):
        outbox.give_again(["b", "c", "x"])
        assert taken(outbox) == [("b", "two three", None, None), ("c", "broke", None, None)]
        assert taken(outbox) == []


def test_growing_output_is_given_again_from_its_beginning():
    outbox = kept()
    outbox.add_piece("a", FUNCTION, "one ")
    outbox.take()
    outbox.add_piece("a", FUNCTION, "two ")
    outbox.give_again(["a"])
    assert taken(outbox) == [("a", "one two ", 0, "in_progress")]
    outbox.finish("a", FUNCTION, "one two ")
    assert taken(outbox) == [("a", "", 8, "completed")]


def test_an_approval_is_given_again():
    outbox = kept()
    approval = McpApprovalResponse(approval_request_id="a", approve=False)
    outbox.add(approval)
    outbox.take()
    outbox.give_again(["a"])
    assert outbox.take() == [approval]


def test_what_is_dropped_is_gone_sent_or_not():
    outbox = kept()
    for key in ("a", "b"):
        outbox.finish(key, FUNCTION, "x")
    outbox.add(McpApprovalResponse(approval_request_id="c", approve=False))
    outbox.take()
    outbox.finish("d", FUNCTION, "x")
    outbox.add_piece("e", FUNCTION, "x")
    outbox.add(McpApprovalResponse(approval_request_id="f", approve=False))
    outbox.add(user_message("stays"))
    outbox.drop(["a", "c", "d", "e", "f"])
    outbox.give_again(["a", "b", "c"])
    assert [key_of(item) for item in outbox.take()] == ["b", None]


def test_nothing_is_kept_of_a_run_that_is_not_stored():
    outbox = Outbox()
    outbox.finish("a", FUNCTION, "x")
    outbox.take()
    outbox.give_again(["a"])
    assert outbox.take() == []
