"""Chunks of chat completions to deltas: every shape of a call that services send, in any cuts, alone and together."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.remote.chat_chunks import DECODER, Choice
from engine.backends.remote.chat_deltas import ChatParser
from engine.backends.remote.chat_tools import ChatTools
from engine.content import TokenLogprob, TopLogprob
from engine.toolspec import Tool
from tests.contract_answers import CallShape, Json, called, said, thought

LOOK = Tool("function", "look", parameters={"type": "object", "properties": {}})
PATCH = Tool("custom", "patch")
SHELL = Tool("local_shell", "local_shell", parameters={"type": "object"})
INNER = Tool("function", "look", parameters={"type": "object"}, namespace="eye")
TOOLS = ChatTools([LOOK, PATCH, SHELL, INNER])


def choice(delta: Json, **more: Any) -> Choice:
    """A chunk's choice, as it is read from the wire."""
    chunk = {"choices": [{"index": 0, "delta": delta} | more]}
    (found,) = DECODER.decode(json.dumps(chunk)).choices or ()
    return found


def parse(*deltas: Json, is_cut: bool = False) -> list[Delta]:
    """All that these say, neighbouring pieces put together."""
    parser = ChatParser(TOOLS)
    out = [delta for one in deltas for delta in parser.feed(choice(one))]
    return joined(out + parser.close(is_cut=is_cut))


def joined(deltas: list[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for delta in deltas:
        if out and isinstance(delta, TextDelta | ReasoningDelta | CallDelta) and type(out[-1]) is type(delta):
            out[-1] = type(delta)(out[-1].text + delta.text)  # type: ignore[union-attr]
        else:
            out.append(delta)
    return out


def call(arguments: str, name: str = "look") -> list[Delta]:
    return [CallStart("function_call", name), CallDelta(arguments), CallEnd()]


ONE = '{"n": {"a": "}"}}'
TWO = '{"m":2}'
ALL_SHAPES: list[CallShape] = ["whole", "split", "no_index", "no_id", "bare"]


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_a_call_of_each_shape(shape: CallShape) -> None:
    assert parse(*called("look", ONE, shape=shape)) == call(ONE)


@pytest.mark.parametrize("second", ALL_SHAPES)
@pytest.mark.parametrize("first", ALL_SHAPES)
def test_two_calls_of_any_two_shapes(first: CallShape, second: CallShape) -> None:
    parts = called("look", ONE, shape=first) + called("look", TWO, call_id="call_2", index=1, shape=second)
    assert parse(*parts) == call(ONE) + call(TWO)


def part(arguments: str = "", name: str | None = None, **named: Any) -> Json:
    """A delta with a part of a call."""
    function: Json = {"arguments": arguments} | ({"name": name} if name is not None else {})
    return {"tool_calls": [{"function": function} | named]}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Every call has index 0: only the ids tell them apart, or, without those, that the first is whole.
        ([part(ONE, "look", index=0, id="a"), part(TWO, "look", index=0, id="b")], call(ONE) + call(TWO)),
        ([part(ONE, "look", index=0), part(TWO, "look", index=0)], call(ONE) + call(TWO)),
        ([part("", "look", index=0, id="a"), part(TWO, index=0, id="a")], call(TWO)),
        # Every call has the same id.
        ([part(ONE, "look", index=0, id="a"), part(TWO, "look", index=1, id="a")], call(ONE) + call(TWO)),
        # Ids and names in each part, or empty ones in the later ones.
        ([part('{"m"', "look", index=0, id="a"), part(":2}", "look", index=0, id="a")], call(TWO)),
        ([part('{"m"', "look", index=0, id="a"), part(":2}", "", index=0, id="")], call(TWO)),
        ([part('{"m"', "look", index=0, id="a"), part(":2}", None, index=0, id=None)], call(TWO)),
        # A name again after the whole call: of that one, or the beginning of another.
        ([part(TWO, "look", index=1), part("", "look", index=1)], call(TWO)),
        ([part(TWO, "look", index=0), part("", "look", index=0), part(ONE, index=0)], call(TWO) + call(ONE)),
        ([part(TWO, "look"), part("", "look"), part(ONE[:5]), part(ONE[5:])], call(TWO) + call(ONE)),
        # Neither index nor id in the later parts.
        ([part('{"m"', "look", id="a"), part(":2}")], call(TWO)),
        ([part('{"m"', "look"), part(":2}", "look")], call(TWO)),
        # Two names, and nothing else to tell them apart.
        ([part("", "look"), part("", "other")], call("{}") + call("{}", "other")),
        # The id comes late, and so does the name.
        ([part('{"m"', "look", index=0), part(":2}", index=0, id="a"), part("", "look", index=0, id="a")], call(TWO)),
        ([part('{"m":2}', index=0, id="a"), part("", "look", index=0)], call(TWO)),
        # Parts of two calls in turns, whatever names them.
        (
            [
                part('{"m"', "look", index=1), part(ONE[:5], "look", index=0),
                part(":2}", index=1), part(ONE[5:], index=0),
            ],
            call(TWO) + call(ONE),
        ),
        (
            [part('{"m"', "look", id="b"), part(ONE[:5], "look", id="a"), part(":2}", id="b"), part(ONE[5:], id="a")],
            call(TWO) + call(ONE),
        ),
        # The arguments at once as an object; none at all; more than an object.
        ([{"tool_calls": [{"function": {"name": "look", "arguments": {"m": 2}}}]}], call('{"m": 2}')),
        ([{"tool_calls": [{"function": {"name": "look"}}]}], call("{}")),
        ([part("", "look", index=0), part("", index=0)], call("{}")),
        ([part(TWO + "\n", "look", index=0), part(" ", index=0), part(TWO, index=0)], call(TWO)),
        # Two calls in one chunk.
        ([{"tool_calls": [*part(ONE, "look")["tool_calls"], *part(TWO, "look")["tool_calls"]]}], call(ONE) + call(TWO)),
        # What is no JSON is the client's to refuse, as is a tool that nobody offered.
        ([part("not json", "look", index=0)], call("not json")),
        ([part(TWO, "unheard-of", index=0)], call(TWO, "unheard-of")),
        # Without a name there is no call; nothing at all is nothing.
        ([part(TWO, index=0)], []),
        ([{"content": "", "reasoning": None, "tool_calls": []}, {}], []),
    ],
)  # fmt: skip
def test_calls_are_told_apart(parts: list[Json], expected: list[Delta]) -> None:
    assert parse(*parts) == expected


def test_reasoning_text_and_calls_follow_each_other() -> None:
    deltas = [*thought("h", "m"), *said("Hel", "lo"), *called("look", ONE, shape="split")]
    assert parse(*deltas) == [ReasoningDelta("hm"), TextDelta("Hello"), *call(ONE)]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(name: str) -> None:
    assert parse({name: "hm"}) == [ReasoningDelta("hm")]


def test_a_refusal_is_text() -> None:
    assert parse({"refusal": "No."}) == [TextDelta("No.")]


def test_a_step_streams_as_it_comes() -> None:
    parser = ChatParser(TOOLS)
    assert parser.feed(choice({"content": "Hel"})) == [TextDelta("Hel")]
    start = parser.feed(choice(part("", "look", index=0, id="a")))
    assert start == [CallStart("function_call", "look")]
    assert parser.feed(choice(part('{"m"', index=0))) == [CallDelta('{"m"')]
    assert parser.feed(choice(part(":2}", index=0))) == [CallDelta(":2}"), CallEnd()], "whole, so it can be answered"


def test_text_that_comes_into_a_call_waits_for_its_end() -> None:
    parts = [part('{"m"', "look", index=0), *said("Wait"), part(":2}", index=0), *said(".")]
    assert parse(*parts) == [*call(TWO), TextDelta("Wait.")]


@pytest.mark.parametrize("blank", ["\n\n", " "])
def test_white_space_alone_is_no_text(blank: str) -> None:
    assert parse(*thought("hm"), *said(blank), *called("look", ONE), *said(blank)) == [ReasoningDelta("hm"), *call(ONE)]
    assert parse(*said(blank, "x", blank)) == [TextDelta(f"{blank}x{blank}")]


def test_a_cut_call_has_no_end_and_a_whole_one_has() -> None:
    half = [part('{"m"', "look", index=1)]
    assert parse(*half, is_cut=True) == [CallStart("function_call", "look"), CallDelta('{"m"')]
    assert parse(*called("look", ONE), *half, is_cut=True)[:3] == call(ONE)


@pytest.mark.parametrize("shape", ALL_SHAPES)
@pytest.mark.parametrize(
    ("arguments", "text"), [('{"input": "a\\n\\"b"}', 'a\n"b'), ('{"x": 1}', '{"x": 1}'), ("", "")]
)
def test_a_custom_tools_input_is_its_text(shape: CallShape, arguments: str, text: str) -> None:
    deltas = [CallStart("custom_tool_call", "patch"), CallDelta(text), CallEnd()]
    assert parse(*called("patch", arguments, shape=shape)) == deltas


def test_calls_have_the_kind_and_the_namespace_of_their_tool() -> None:
    assert parse(*called("local_shell", TWO))[0] == CallStart("local_shell_call", "local_shell")
    assert parse(*called("eye_look", TWO))[0] == CallStart("function_call", "look", "eye")


def test_log_probabilities_stay_with_their_text() -> None:
    rated = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [{"token": "é", "logprob": -1}]}
    parser = ChatParser(TOOLS)
    assert parser.feed(choice({"content": "Hi"}, logprobs={"content": [rated]})) == [
        TextDelta("Hi", (TokenLogprob("Hi", [72, 105], -0.5, [TopLogprob("é", [195, 169], -1.0)]),))
    ]


def test_what_was_said_is_known_afterwards() -> None:
    parser = ChatParser(TOOLS)
    assert not parser.has_begun
    for delta in [{"role": "assistant"}, *thought("hm"), *said("\n"), *called("look", ONE, shape="split")]:
        parser.feed(choice(delta))
    assert (parser.text, parser.reasoning, parser.has_begun) == ("\n", "hm", True)
    assert [(one.id, one.name, one.arguments, one.is_whole) for one in parser.calls] == [("call_1", "look", ONE, True)]


# --- any answer, in any cuts ---------------------------------------------------------------------------------------

_words = st.text(min_size=1, max_size=8)
_arguments = st.dictionaries(
    st.text(max_size=3), st.one_of(st.text(max_size=6), st.integers(), st.lists(st.text(max_size=2)))
).map(json.dumps)


@st.composite
def _answers(draw: st.DrawFn) -> tuple[list[Json], list[Delta]]:
    """Deltas, and what they come to: words and calls one after the other, cut anywhere."""
    kinds = draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=6))
    given: list[Json] = []
    expected: list[Delta] = []
    for number, kind in enumerate(kinds):
        if kind == "call":
            arguments = draw(_arguments)
            given += _cut_call(draw, arguments, number)
            expected += call(arguments)
            continue
        text = draw(_words.filter(lambda word: bool(word.strip())))
        cut = draw(st.integers(0, len(text)))
        given += [{"content" if kind == "text" else "reasoning": piece} for piece in (text[:cut], text[cut:])]
        expected.append(TextDelta(text) if kind == "text" else ReasoningDelta(text))
    return given, joined(expected)


def _cut_call(draw: st.DrawFn, arguments: str, number: int) -> list[Json]:
    named: Json = draw(
        st.sampled_from([{"index": number}, {"id": f"call_{number}"}, {"index": 0, "id": f"c{number}"}, {}])
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    repeats = draw(st.booleans()) and bool(named)
    return [part(piece, "look" if index == 0 or repeats else None, **named) for index, piece in enumerate(pieces)]


@given(_answers())
def test_any_answer_comes_out_whole_and_in_order(answer: tuple[list[Json], list[Delta]]) -> None:
    deltas, expected = answer
    assert parse(*deltas) == expected


@given(_answers(), st.integers(0, 40))
def test_a_cut_anywhere_loses_only_what_did_not_come(answer: tuple[list[Json], list[Delta]], at: int) -> None:
    """What was said of the first part is the beginning of what is said of all."""
    deltas, _ = answer
    parser, whole = ChatParser(TOOLS), ChatParser(TOOLS)
    first = joined([delta for one in deltas[:at] for delta in parser.feed(choice(one))])
    said_of_all = joined([delta for one in deltas for delta in whole.feed(choice(one))] + whole.close(is_cut=False))
    cut = first[-1:] if first and isinstance(first[-1], TextDelta | ReasoningDelta | CallDelta) else []
    whole_part = first[: len(first) - len(cut)]
    assert said_of_all[: len(whole_part)] == whole_part
    for piece in cut:
        assert said_of_all[len(whole_part)].text.startswith(piece.text)  # type: ignore[union-attr]


def test_an_answer_may_come_whole() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parser = ChatParser(TOOLS)
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    whole = msgspec.convert({"message": message, "finish_reason": "tool_calls"}, Choice)
    expected = [TextDelta("hi"), CallStart("function_call", "look"), CallDelta("{}"), CallEnd()]
    assert parser.feed(whole) + parser.close(is_cut=False) == expected
    assert parser.feed(whole) == []  # some say all of it again at the end of a stream


def test_a_chunk_may_leave_out_what_it_likes() -> None:
    assert msgspec.json.encode(DECODER.decode(b'{"object":"x","choices":null}').choices) == b"null"
    assert DECODER.decode(b'{"choices":[{"index":0}]}').choices == [Choice()]
    assert DECODER.decode(b'{"object":"error","message":"all of it is one"}').is_error
    assert ChatParser(TOOLS).feed(Choice()) == []
