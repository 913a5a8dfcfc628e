"""parser.py: tables of what comes out, and the same whatever the cuts."""

import json
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.chance import Chance
from engine.backends.families import HERMES, SMOLLM2
from engine.backends.parser import StreamParser
from engine.backends.toolset import ToolSet
from engine.backends.vocabulary import Span, Vocabulary
from engine.content import TopLogprob
from engine.toolspec import Tool
from tests.tiny import STOP_ID, make_tokenizer

TOOLS = ToolSet.of(
    [
        Tool("function", "get_weather", parameters={"type": "object"}),
        Tool("function", "find", parameters={"type": "object"}, namespace="files"),
        Tool("custom", "python"),
        Tool("shell", "shell", parameters={"type": "object"}),
    ]
)
PLAIN = Vocabulary(make_tokenizer().to_str().encode())
TAGGED = Vocabulary(make_tokenizer(tags=True).to_str().encode(), HERMES.markup)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind put together, as a reader does."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, TextDelta | ReasoningDelta | CallDelta) and type(last) is type(delta):
            found[-1] = type(delta)(last.text + delta.text)
        else:
            found.append(delta)
    return found


def parse(text: str, *, cuts: list[int] | None = None, tools: ToolSet = TOOLS, family=HERMES, **options) -> list[Delta]:
    """The deltas of `text`, fed a token at a time, or in stretches that end at `cuts`."""
    parser = StreamParser(PLAIN, family, tools, **options)
    ids = [*PLAIN.encode(text), STOP_ID]
    borders = (
        sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))}) if cuts is not None else range(len(ids) + 1)
    )
    deltas = [delta for start, end in pairwise(borders) for delta in parser.feed(ids[start:end])]
    return joined(deltas + parser.close())


WEATHER = [CallStart("function_call", "get_weather"), CallDelta('{"city": "Paris"}'), CallEnd()]
PARIS = call("get_weather", '{"city": "Paris"}')
CASES = {
    "text": ("Hello, wörld 🙂 <b>!", [TextDelta("Hello, wörld 🙂 <b>!")]),
    "blank text": (" \n", [TextDelta(" \n")]),
    "leading space": ("\n hi", [TextDelta("\n hi")]),
    "call": (PARIS, WEATHER),
    "two calls": (
        PARIS + "\n" + PARIS,
        WEATHER * 2,
    ),
    "text, then call": ("Let me see." + PARIS, [TextDelta("Let me see."), *WEATHER]),
    "call, then text": (PARIS + "\nDone.", [*WEATHER, TextDelta("Done.")]),
    "thought, then call": (
        "<think>\nhm</think>\n\n" + PARIS,
        [ReasoningDelta("\nhm"), *WEATHER],
    ),
    "cut thought": ("<think>hm</thi", [ReasoningDelta("hm</thi")]),
    "namespace": (
        call("files.find", "{}"),
        [CallStart("function_call", "find", "files"), CallDelta("{}"), CallEnd()],
    ),
    "built-in": (
        call("shell", '{"commands": ["ls"]}'),
        [CallStart("shell_call", "shell"), CallDelta('{"commands": ["ls"]}'), CallEnd()],
    ),
    "custom": (
        call("python", '{"input": "print(\\"é\\")\\n"}'),
        [CallStart("custom_tool_call", "python"), CallDelta('print("é")\n'), CallEnd()],
    ),
    "custom, cut": (
        '<tool_call>\n{"name": "python", "arguments": {"input": "print(1',
        [CallStart("custom_tool_call", "python"), CallDelta("print(1")],
    ),
    "arguments exactly as written": (
        call("get_weather", '{ "a":\t[{"x": "}\\"</tool_call>"}],"b":1 }'),
        [
            CallStart("function_call", "get_weather"),
            CallDelta('{ "a":\t[{"x": "}\\"</tool_call>"}],"b":1 }'),
            CallEnd(),
        ],
    ),
    "arguments cut off": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa',
        [CallStart("function_call", "get_weather"), CallDelta('{"city": "Pa')],
    ),
    "other key order": (
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        WEATHER,
    ),
    "arguments as a string": (
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        WEATHER,
    ),
    "no closing tag": ('<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}', WEATHER),
    "unknown tool": (call("nope", "{}"), [TextDelta(call("nope", "{}"))]),
    "no JSON": ("<tool_call>get_weather()</tool_call> ok", [TextDelta("<tool_call>get_weather()</tool_call> ok")]),
    "only a tag": ("a <tool_call>", [TextDelta("a <tool_call>")]),
    "half a tag": ("a <tool_", [TextDelta("a <tool_")]),
    "stray tail": (
        PARIS.replace("</tool_call>", "oops"),
        [*WEATHER, TextDelta("oops")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_text_gives_its_deltas(name):
    text, expected = CASES[name]
    assert parse(text) == expected


def words(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


TWO_CALLS = "Let me see.\n" + PARIS + "\n" + call("files.find", '{"what": "a <tool_call> b"}')


@pytest.mark.parametrize("size", range(len(PLAIN.encode(TWO_CALLS)) + 1))
def test_a_step_that_is_cut_anywhere_in_its_calls_shows_none_of_their_syntax(size):  # P29
    parser = StreamParser(PLAIN, SMOLLM2, TOOLS)
    whole = parse(TWO_CALLS, family=SMOLLM2)
    deltas = joined(parser.feed(PLAIN.encode(TWO_CALLS)[:size]) + parser.close(is_cut=True))
    assert words(whole).startswith(words(deltas))
    calls, all_calls = ([delta for delta in some if not isinstance(delta, TextDelta)] for some in (deltas, whole))
    last = calls.pop() if calls and isinstance(calls[-1], CallDelta) else CallDelta("")
    assert calls == all_calls[: len(calls)]
    assert not last.text or all_calls[len(calls)].text.startswith(last.text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a <tool_", [TextDelta("a ")]),
        ("a <tool_call>", [TextDelta("a ")]),
        ("a <", [TextDelta("a ")]),
        ("a <b", [TextDelta("a <b")]),
        ("<think>hm</thi", [ReasoningDelta("hm")]),
        ('<tool_call>{"name": "nope", "argu', []),
        ('<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}', WEATHER),
        ("<tool_call>no call</tool_call>", [TextDelta("<tool_call>no call</tool_call>")]),
        ("\n\n<tool", []),
    ],
)
def test_what_a_cut_leaves_of_a_tag_is_not_shown(text, shown):
    parser = StreamParser(PLAIN, HERMES, TOOLS)
    assert joined(parser.feed(PLAIN.encode(text)) + parser.close(is_cut=True)) == shown


def test_where_a_tag_is_a_token_its_first_characters_are_text_also_at_a_cut():
    parser = StreamParser(TAGGED, HERMES, TOOLS)
    assert joined(parser.feed(TAGGED.encode("a <")) + parser.close(is_cut=True)) == [TextDelta("a <")]


@pytest.mark.parametrize("name", CASES)
def test_one_cut_anywhere_changes_nothing(name):
    text, expected = CASES[name]
    for cut in range(len(PLAIN.encode(text)) + 1):
        assert parse(text, cuts=[cut]) == expected


@given(
    names=st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=9),
)
def test_cuts_never_matter(names, cuts):
    text = "\n".join(CASES[name][0] for name in names)
    assert parse(text, cuts=cuts) == parse(text) == parse(text, cuts=[])


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_text_without_tools_comes_out_unchanged(text, cuts):
    text = text.replace("<think>", "")
    assert "".join(d.text for d in parse(text, cuts=cuts, tools=ToolSet({}), family=SMOLLM2)) == text


# --- log-probabilities


def chances(ids: list[int]) -> list[Chance]:
    """One for each id that says which it was and where."""
    return [Chance(-float(place), [(token_id, -0.5)]) for place, token_id in enumerate(ids)]


def rated(text: str, cuts: list[int], tools: ToolSet = TOOLS, family=HERMES) -> list[Delta]:
    """The deltas of `text` with log-probabilities, fed in stretches that end at `cuts`."""
    parser = StreamParser(PLAIN, family, tools)
    ids = [*PLAIN.encode(text), STOP_ID]
    borders = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    deltas: list[Delta] = []
    for start, end in pairwise(borders):
        deltas += parser.feed(ids[start:end], chances(ids)[start:end])
    return deltas + parser.close()


def written(delta: TextDelta) -> bytes:
    return b"".join(bytes(token.bytes) for token in delta.logprobs)


@given(st.text(max_size=60), st.lists(st.integers(0, 120), max_size=5))
def test_each_token_comes_with_the_first_text_that_it_has_a_part_of(text, cuts):
    text = text.replace("<think>", "")
    told = tokens = b""
    for delta in rated(text, cuts, ToolSet({}), SMOLLM2):
        assert isinstance(delta, TextDelta)
        told += delta.text.encode()
        tokens += written(delta)
        assert len(tokens) >= len(told)
        assert not delta.logprobs or len(tokens) - len(delta.logprobs[-1].bytes) < len(told)
    assert tokens == text.encode()


@pytest.mark.parametrize("name", CASES)
def test_only_text_has_logprobs_and_all_of_it_has(name):
    text, expected = CASES[name]
    for cut in range(len(PLAIN.encode(text)) + 1):
        deltas = rated(text, [cut])
        texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
        places = [token.logprob for delta in texts for token in delta.logprobs]
        assert places == sorted(set(places), reverse=True)
        assert joined([TextDelta(d.text) if isinstance(d, TextDelta) else d for d in deltas]) == expected
        for delta in texts:
            first, last = delta.logprobs[0], delta.logprobs[-1]
            assert delta.text.encode() in written(delta)
            assert len(written(delta)) < len(delta.text.encode()) + len(first.bytes) + len(last.bytes)


@given(
    names=st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=9),
)
def test_cuts_move_no_logprob_from_one_text_to_another(names, cuts):
    text = "\n".join(CASES[name][0] for name in names)

    def texts(deltas: list[Delta]) -> list[tuple[str, list[float]]]:
        """Each message's text with its tokens."""
        found = []
        for is_text, group in groupby(deltas, lambda delta: isinstance(delta, TextDelta)):
            if is_text:
                parts = list(group)
                tokens = [token.logprob for part in parts for token in part.logprobs]
                found.append(("".join(part.text for part in parts), tokens))
        return found

    assert texts(rated(text, cuts)) == texts(rated(text, []))


def test_a_token_of_half_a_character_says_its_bytes():
    ids = PLAIN.encode("🙂")
    (delta,) = StreamParser(PLAIN, HERMES, TOOLS).feed(ids, chances(ids))
    assert [token.bytes for token in delta.logprobs] == [[0xF0], [0x9F], [0x99], [0x82]]
    assert delta.logprobs[0].token == "\\xf0"
    assert delta.logprobs[1].top_logprobs == [TopLogprob("\\x9f", [0x9F], -0.5)]


def test_what_never_became_a_character_keeps_its_tokens():
    parser, ids = StreamParser(PLAIN, HERMES, TOOLS), PLAIN.encode("a🙂")[:3]
    first = parser.feed(ids, chances(ids))
    (rest,) = parser.close()
    assert [delta.text for delta in (*first, rest)] == ["a", "�"]
    assert [len(delta.logprobs) for delta in (*first, rest)] == [1, 2]


@pytest.mark.parametrize(
    ("name", "count"), [("two calls", 2), ("call", 1), ("other key order", 1), ("arguments cut off", 0), ("no JSON", 0)]
)
def test_calls_that_have_ended_are_counted(name, count):
    parser = StreamParser(PLAIN, HERMES, TOOLS)
    ids = PLAIN.encode(CASES[name][0])
    parser.feed(ids[:-1])
    assert parser.num_calls == max(0, count - 1)
    parser.feed(ids[-1:])
    assert parser.num_calls == count


def test_without_callable_tools_a_call_is_text():
    text = call("get_weather", "{}")
    assert parse(text, tools=ToolSet({})) == [TextDelta(text)]


def test_a_turn_that_begins_in_thought():
    assert parse("hm</think>\nyes", in_reasoning=True) == [ReasoningDelta("hm"), TextDelta("yes")]


def test_a_call_starts_before_its_arguments_end_and_its_pieces_stream():
    parser = StreamParser(PLAIN, HERMES, TOOLS)
    first = parser.feed(PLAIN.encode('<tool_call>\n{"name": "get_weather", "arguments": {"ci'))
    assert first == [CallStart("function_call", "get_weather"), CallDelta('{"ci')]
    assert parser.feed(PLAIN.encode('ty": ')) == [CallDelta('ty": ')]
    assert parser.feed(PLAIN.encode('"x"}')) == [CallDelta('"x"}'), CallEnd()]


def test_only_the_start_of_a_tag_is_held_back():
    parser = StreamParser(PLAIN, HERMES, TOOLS)
    assert parser.feed(PLAIN.encode("hello <tool")) == [TextDelta("hello ")]
    assert parser.feed(PLAIN.encode("box>")) == [TextDelta("<toolbox>")]


def test_half_a_character_waits_and_is_never_broken():
    parser = StreamParser(PLAIN, HERMES, TOOLS)
    ids = PLAIN.encode("🙂")
    assert len(ids) == 4
    assert [parser.feed([token_id]) for token_id in ids] == [[], [], [], [TextDelta("🙂")]]
    parser.feed(ids[:2])
    assert parser.close() == [TextDelta("�")]


def test_tags_that_are_tokens_are_seen_and_control_tokens_are_not_text():
    parser = StreamParser(TAGGED, HERMES, TOOLS)
    ids = TAGGED.encode_spans([Span(call("get_weather", json.dumps({"city": "Paris"})) + "<|im_end|>", True)])
    assert ids[0] == TAGGED.added["<tool_call>"]
    assert joined(parser.feed(ids) + parser.close()) == WEATHER
