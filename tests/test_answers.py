"""answers.py: which answers are taken, in one piece or in parts, and that a refusal changes nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answers import Answers
from engine.errors import RequestError
from engine.items import Call, FunctionCallOutput, Item, answer_key
from tests.machines import item, output, user

CALLS: list[dict[str, Any]] = [
    {"type": "function_call", "id": "fc_0", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "id": "ctc_0", "call_id": "b", "name": "g", "input": "x"},
    {"type": "local_shell_call", "id": "lsh_0", "call_id": "c", "action": {}},
    {"type": "shell_call", "id": "sh_0", "call_id": "d", "action": {"commands": []}},
    {"type": "apply_patch_call", "id": "apc_0", "call_id": "e", "operation": {}},
    {"type": "computer_call", "id": "cu_0", "call_id": "f", "action": {}},
    {"type": "tool_search_call", "id": "tsc_0", "call_id": "g", "arguments": {}},
    {"type": "mcp_approval_request", "id": "h", "name": "m", "arguments": "{}", "server_label": "s"},
]
WHOLE: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "a", "output": "1"},
    {"type": "custom_tool_call_output", "call_id": "b", "output": "2"},
    {"type": "local_shell_call_output", "call_id": "c", "output": "3"},
    {"type": "shell_call_output", "call_id": "d", "output": []},
    {"type": "apply_patch_call_output", "call_id": "e", "status": "completed"},
    {"type": "computer_call_output", "call_id": "f", "output": {"type": "computer_screenshot", "image_url": "x"}},
    {"type": "tool_search_output", "call_id": "g", "tools": []},
    {"type": "mcp_approval_response", "approval_request_id": "h", "approve": True},
]
OTHER = [{"output": "x"}, {"output": "x"}, {"output": "x"}, {"output": [{}]}, {"status": "failed"}]
OTHER += [{"output": {"type": "computer_screenshot", "image_url": "y"}}, {"tools": [{}]}, {"approve": False}]


def opened(*numbers: int, max_output_chars: int = 1000) -> Answers:
    """Answers that wait for these calls."""
    answers = Answers(max_output_chars)
    for number in numbers:
        call = item(**CALLS[number])
        assert isinstance(call, Call)
        answers.made(call)
        answers.called(call)
    return answers


def append(answers: Answers, *items: Item) -> list[str]:
    """Check and commit. Returns the keys that it answered or repeated."""
    batch = answers.check(list(items))
    answers.commit(batch)
    return [*batch.answers, *batch.repeated]


def state_of(answers: Answers) -> list[Any]:
    return [getattr(answers, name) for name in Answers.__slots__]


def refusal(answers: Answers, *items: Item) -> RequestError:
    """The error of an append that must change nothing."""
    before = copy.deepcopy(state_of(answers))
    with pytest.raises(RequestError) as caught:
        answers.check(list(items))
    assert state_of(answers) == before
    return caught.value


def part(key: str, text: str, offset: int, status: str = "in_progress") -> Item:
    return output(key, text, offset=offset, status=status)


# --- whole answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_each_kind_of_call_is_answered_by_its_kind(number: int) -> None:  # P39
    answers = opened(number)
    (pending,) = answers.unanswered()
    assert pending.answer_type == WHOLE[number]["type"]
    assert (pending.type, pending.item_id) == (CALLS[number]["type"], CALLS[number]["id"])
    assert append(answers, item(**WHOLE[number])) == [pending.answer_key]
    assert answers.unanswered() == []
    assert answers.take() == [item(**WHOLE[number])]
    assert answers.open == {}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_shell_and_patch_calls_may_be_answered_by_function_outputs(number: int) -> None:
    answers = opened(number)
    append(answers, output(CALLS[number]["call_id"]))
    assert answers.unanswered() == []


@pytest.mark.parametrize(("call", "answer"), [(c, a) for c in range(8) for a in range(8) if c != a])
def test_answer_of_another_kind_is_refused(call: int, answer: int) -> None:
    key = CALLS[call].get("call_id", CALLS[call]["id"])
    key_field = "approval_request_id" if answer == 7 else "call_id"
    wrong = item(**{**WHOLE[answer], key_field: key})
    answers = opened(call)
    if answer == 0 and call in (2, 3, 4):
        append(answers, wrong)
        return
    error = refusal(answers, wrong)
    assert (error.param, error.status) == ("input[0].type", 400)
    assert WHOLE[call]["type"] in error.message


def test_local_shell_is_matched_by_the_call_id_in_id_too() -> None:
    answers = opened(2)
    append(answers, item(type="local_shell_call_output", id="c", output="x"))
    assert answers.unanswered() == []


def test_outputs_come_out_in_call_order_whatever_order_they_came_in() -> None:  # P17
    answers = opened(*range(8))
    for number in (5, 0, 7, 2, 1, 6, 3, 4):
        append(answers, item(**WHOLE[number]))
    assert answers.take() == [item(**one) for one in WHOLE]


def test_nothing_is_taken_while_a_call_waits() -> None:  # swisnl/agents-sdk#34
    answers = opened(0, 1)
    append(answers, item(**WHOLE[0]))
    assert [call.answer_key for call in answers.unanswered()] == ["b"]
    with pytest.raises(ValueError, match="b has no answer"):
        answers.take()
    assert set(answers.open) == {"a", "b"}


def test_pending_names_the_tool() -> None:
    assert [call.name for call in opened(*range(8)).unanswered()] == [
        "f", "g", "local_shell", "shell", "apply_patch", "computer", "tool_search", "m",
    ]  # fmt: skip


def test_unknown_call_is_refused_by_path_and_with_the_text_clients_know() -> None:  # Wei-Shaw/sub2api#2115
    error = refusal(opened(0), item(**WHOLE[0]), output("call_x"))
    assert (error.param, error.status) == ("input[1].call_id", 400)
    assert error.message == "No tool call found for function call output with call_id call_x."
    error = refusal(opened(0), item(type="mcp_approval_response", approval_request_id="x", approve=True))
    assert error.param == "input[0].approval_request_id"


def test_answer_that_names_no_call_is_refused() -> None:
    error = refusal(opened(2), item(type="local_shell_call_output", output="x"))
    assert (error.param, error.code) == ("input[0].call_id", "missing_required_parameter")
    assert refusal(opened(6), item(type="tool_search_output", tools=[])).param == "input[0].call_id"


# --- second answers ----------------------------------------------------------------------------------------------

WHEN = ["in the same append", "while another call waits", "after the run went on"]


def answered(number: int, when: str) -> tuple[Answers, list[Item]]:
    """Answers in which a call has been answered, and what to put in front of the second answer."""
    first = item(**WHOLE[number])
    if when == WHEN[0]:
        return opened(number), [first]
    other = 0 if number else 1
    answers = opened(number, other)
    append(answers, first)
    if when == WHEN[2]:
        append(answers, item(**WHOLE[other]))
        answers.take()
    return answers, []


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.parametrize("extra", [{}, {"id": "resent"}, {"status": "completed"}, {"created_by": "x"}])
def test_identical_second_answer_is_a_no_op(number: int, when: str, extra: dict[str, Any]) -> None:  # P14
    answers, before = answered(number, when)
    waiting = answers.unanswered()
    batch = answers.check([*before, item(**WHOLE[number] | extra)])
    assert batch.repeated == [answer_key(item(**WHOLE[number]))]  # type: ignore[arg-type]
    assert batch.is_empty is (when != WHEN[0])
    answers.commit(batch)
    if when != WHEN[0]:
        assert answers.unanswered() == waiting


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_different_second_answer_is_refused(number: int, when: str) -> None:  # livekit/agents#6785
    answers, before = answered(number, when)
    error = refusal(answers, *before, item(**WHOLE[number] | OTHER[number]))
    assert error.status == 400
    key = "approval_request_id" if WHOLE[number]["type"] == "mcp_approval_response" else "call_id"
    assert error.param == f"input[{len(before)}].{key}"


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_part_of_a_function_output_cannot_follow_another_kind_of_answer(number: int, when: str) -> None:
    answers, before = answered(number, when)
    if when == WHEN[2]:  # its text is gone, so a part of it is taken for a resend
        return
    error = refusal(answers, *before, part(CALLS[number]["call_id"], "x", 0))
    assert "answered already" in error.message


# --- parts (rule 7) ----------------------------------------------------------------------------------------------


@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 12), max_size=5))
def test_output_in_any_parts_is_the_whole_output(text: str, cuts: list[int]) -> None:  # P20
    places = sorted({min(cut, len(text)) for cut in cuts} | {0})
    answers = opened(0)
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        is_last = end == len(text) and start == places[-1]
        append(answers, part("a", text[start:end], start, "completed" if is_last else "in_progress"))
        assert bool(answers.unanswered()) is not is_last
    assert answers.take() == [FunctionCallOutput(call_id="a", output=text, status="completed")]


@given(text=st.text(min_size=1, max_size=8), data=st.data())
def test_any_resent_part_changes_nothing_and_any_gap_is_refused(text: str, data: st.DataObject) -> None:  # P20
    answers = opened(0, 1)
    known = data.draw(st.integers(1, len(text)))
    append(answers, part("a", text[:known], 0))
    start = data.draw(st.integers(0, known))
    end = data.draw(st.integers(start, known))
    append(answers, part("a", text[start:end], start))
    assert answers.open["a"].text == text[:known]
    error = refusal(answers, part("a", "x", known + 1))
    assert error.param == "input[0].offset"
    assert f"has {known} characters" in error.message
    overlap = data.draw(st.integers(0, known))
    append(answers, part("a", text[overlap:], overlap, "completed"))
    assert answers.open["a"].answer == FunctionCallOutput(call_id="a", output=text, status="completed")
    append(answers, part("a", text[start:end], start))
    append(answers, output("a", text))
    assert refusal(answers, output("a", text + "x")).param == "input[0].call_id"


def test_other_text_at_a_known_offset_is_refused() -> None:
    answers = opened(0)
    append(answers, part("a", "abcd", 0))
    for wrong in (part("a", "x", 0), part("a", "bX", 1), part("a", "abcdX"[1:], 0), part("a", "abc", 0, "completed")):
        assert refusal(answers, wrong).param == "input[0].output"
    assert answers.open["a"].text == "abcd"


def test_parts_of_one_append_join() -> None:
    answers = opened(0)
    append(answers, part("a", "ab", 0), part("a", "cd", 2), part("a", "", 4, "completed"))
    assert answers.take() == [FunctionCallOutput(call_id="a", output="abcd", status="completed")]


def test_part_without_offset_starts_at_the_beginning() -> None:
    answers = opened(0)
    append(answers, output("a", "ab", status="in_progress"))
    append(answers, output("a", "abcd", status="in_progress"))
    append(answers, part("a", "abcde", 0, "completed"))
    assert answers.take() == [FunctionCallOutput(call_id="a", output="abcde", status="completed")]


def test_whole_output_takes_the_place_of_parts() -> None:  # P20
    answers = opened(0)
    append(answers, part("a", "much too long", 0))
    append(answers, output("a", "short"))
    assert answers.take() == [FunctionCallOutput(call_id="a", output="short")]


def test_message_beside_a_part_that_is_resent_is_taken_once() -> None:
    answers = opened(0)
    append(answers, part("a", "x", 0), user("hi"))
    assert answers.check([part("a", "x", 0), user("hi")]).messages == []
    assert answers.check([part("a", "y", 1), user("hi")]).messages == [user("hi")]


def test_custom_tool_output_grows_too() -> None:
    answers = opened(1)
    for text, offset, status in (("x", 0, "in_progress"), ("y", 1, "completed")):
        append(
            answers,
            item(type="custom_tool_call_output", call_id="b", output=text, offset=offset, status=status),
        )
    (answer,) = answers.take()
    assert answer.output == "xy"  # type: ignore[union-attr]


def test_output_in_parts_must_be_text() -> None:
    content = [{"type": "input_text", "text": "x"}]
    answers = opened(0)
    assert refusal(answers, output("a", content, status="in_progress")).param == "input[0].output"
    append(answers, part("a", "x", 0))
    append(answers, part("a", "", 1, "completed"))
    assert refusal(answers, output("a", content, offset=1)).param == "input[0].output"


@pytest.mark.parametrize("when", WHEN[1:])
def test_last_part_that_ends_elsewhere_than_the_answer_is_a_different_answer(when: str) -> None:
    answers = opened(0, 1)
    append(answers, output("a", "abcd"))
    if when == WHEN[2]:
        append(answers, item(**WHOLE[1]))
        answers.take()
    append(answers, part("a", "abcd", 0, "completed"))
    append(answers, part("a", "ab", 0))
    error = refusal(answers, part("a", "ab", 0, "completed"))
    assert error.param == "input[0].call_id"


def test_resent_parts_of_a_closed_answer_are_a_no_op() -> None:
    answers = opened(0)
    append(answers, part("a", "ab", 0), part("a", "cd", 2, "completed"))
    answers.take()
    for resent in (part("a", "ab", 0), part("a", "cd", 2, "completed"), output("a", "abcd")):
        assert answers.check([resent]).is_empty
    refusal(answers, output("a", "abc"))


def test_max_streamed_output_chars_is_reached() -> None:
    answers = opened(0, max_output_chars=4)
    append(answers, part("a", "abcd", 0))
    error = refusal(answers, part("a", "e", 4))
    assert (error.code, error.param) == ("output_too_long", "input[0].output")
    assert refusal(opened(0, max_output_chars=4), part("a", "abcde", 0)).code == "output_too_long"
    append(answers, part("a", "", 4, "completed"))


# --- what else may be in an append -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "developer", "system"])
def test_messages_of_the_client_come_along(role: str) -> None:
    message = item(type="message", role=role, content="x")
    assert opened(0).check([item(**WHOLE[0]), message]).messages == [message]


def test_everything_is_checked_before_anything_is_kept() -> None:
    answers = opened(0, 1)
    error = refusal(answers, item(**WHOLE[0]), user(), item(**WHOLE[1]), output("call_x"))
    assert error.param == "input[3].call_id"
    assert len(answers.unanswered()) == 2


SEARCH: dict[str, Any] = {"type": "web_search_call", "action": {"type": "search", "query": "tea"}}
ECHOES = [
    *CALLS,
    {"type": "message", "id": "msg_0", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
    {"type": "message", "role": "assistant", "content": "Hi."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}], "id": None},
    {"type": "reasoning", "id": "rs_0", "summary": []},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "local_shell_call", "id": "lsh_0", "action": {}},
    {"type": "web_search_call", "id": "ws_0"},
    SEARCH,
    SEARCH | {"status": "completed"},
]


def with_history() -> Answers:
    """Answers of a run that made one item of each kind."""
    answers = opened(*range(8))
    answers.made(item(type="message", id="msg_0", role="assistant", content="Hi."))
    answers.made(item(**SEARCH, id="ws_0", status="completed"))
    return answers


@pytest.mark.parametrize("echo", ECHOES, ids=str)
@pytest.mark.parametrize("is_closed", [False, True])
def test_echo_of_an_own_item_is_dropped(echo: dict[str, Any], is_closed: bool) -> None:  # openai/codex#11383
    answers = with_history()
    if is_closed:
        append(answers, *(item(**one) for one in WHOLE))
        answers.take()
    assert answers.check([item(**echo)]).is_empty
    assert answers.new_items([item(**echo), user()]) == [user()]


@pytest.mark.parametrize(
    "foreign",
    [
        {"type": "message", "role": "assistant", "content": "never said"},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        {"type": "local_shell_call", "action": {}},
        {"type": "mcp_approval_request", "id": "x", "name": "m", "arguments": "{}", "server_label": "s"},
        SEARCH | {"id": "x"},
        SEARCH | {"action": {"type": "search", "query": "coffee"}},
        {"type": "web_search_call", "id": ["ws_0"]},
        {"type": "web_search_call"},
        {"type": "compaction", "id": "cmp_0", "encrypted_content": "x"},
    ],
    ids=str,
)
def test_item_that_is_neither_an_answer_nor_an_echo_is_refused(foreign: dict[str, Any]) -> None:
    error = refusal(with_history(), item(**WHOLE[0]), item(**foreign))
    assert error.param == "input[1].type"
    assert foreign["type"] in error.message


def test_new_items_drops_answers_that_are_known() -> None:
    answers = opened(0)
    append(answers, item(**WHOLE[0]))
    answers.take()
    assert answers.new_items([item(**WHOLE[0]), user()]) == [user()]
    with pytest.raises(RequestError) as caught:
        answers.new_items([user(), output("new")])
    assert caught.value.param == "input[1].call_id"


def test_message_of_an_append_that_is_resent_is_taken_once() -> None:
    answers = opened(0)
    append(answers, item(**WHOLE[0]), user("hurry"))
    answers.take()
    assert answers.check([item(**WHOLE[0]), user("hurry")]).is_empty
    assert answers.check([item(**WHOLE[0]), user("another")]).messages == [user("another")]
    assert answers.check([user("hurry")]).messages == [user("hurry")]


def test_what_is_foreseen_ends_with_the_first_output_that_is_not_whole() -> None:
    answers = opened(0, 1, 2)
    grows = {"type": "custom_tool_call_output", "call_id": "b", "status": "in_progress"}
    assert answers.foreseen() == []
    append(answers, item(**WHOLE[2]), item(**grows, output="be", offset=0))
    assert answers.foreseen() == []  # the first one's output comes before them, and is not known
    append(answers, item(**WHOLE[0]))
    first, second = answers.foreseen()
    assert first == item(**WHOLE[0])
    assert (type(second).__name__, second.call_id, second.output) == ("CustomToolCallOutput", "b", "be")
    append(answers, item(**grows | {"status": "completed"}, output="en", offset=2))
    assert [type(answer).__name__[:6] for answer in answers.foreseen()] == ["Functi", "Custom", "LocalS"]
