"""Every family's calls and thoughts: as published, cut at every position, and written and read back."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.families import (
    DEEPSEEK,
    DEEPSEEK_FENCED,
    FAMILIES,
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    QWEN_CODER,
    Family,
)
from engine.backends.harmony import HarmonyParser
from engine.backends.parser import StreamParser
from engine.backends.toolset import ToolSet
from engine.toolspec import Tool
from tests.test_parser import PLAIN, joined

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": ["boolean", "null"]},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array"},
    },
}
TOOLS = ToolSet.of(
    [
        Tool("function", "get_weather", parameters=CITY),
        Tool("function", "find", parameters={"type": "object"}, namespace="files"),
        Tool("custom", "python"),
    ]
)


def reader(family: Family, tools: ToolSet = TOOLS):
    return HarmonyParser(PLAIN, family, tools) if family.is_harmony else StreamParser(PLAIN, family, tools)


def parse(family: Family, text: str, cuts: list[int] | None = None, tools: ToolSet = TOOLS) -> list[Delta]:
    parser, ids = reader(family, tools), PLAIN.encode(text)
    borders = range(len(ids) + 1) if cuts is None else sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    deltas = [delta for start, end in pairwise(borders) for delta in parser.feed(ids[start:end])]
    return joined(deltas + parser.close())


def call(name: str, arguments: str, namespace: str | None = None) -> list[Delta]:
    return [CallStart("function_call", name, namespace), CallDelta(arguments), CallEnd()]


PARIS = call("get_weather", '{"city": "Paris"}')
ROME = call("get_weather", '{"city": "Rome", "days": 2}')
PYTHON: list[Delta] = [CallStart("custom_tool_call", "python"), CallDelta('print("a\n")'), CallEnd()]
JSON_PARIS, JSON_ROME = '{"city": "Paris"}', '{"city": "Rome", "days": 2}'
JSON_PYTHON = json.dumps({"input": 'print("a\n")'})


def glm(name: str, **arguments: str) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def coder(name: str, **arguments: str) -> str:
    pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def deepseek(*calls: tuple[str, str]) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{args}<｜tool▁call▁end｜>" for name, args in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def fenced(*calls: tuple[str, str]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{args}\n```<｜tool▁call▁end｜>"
        for name, args in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def message(channel: str, body: str, end: str = "<|end|><|start|>assistant") -> str:
    return f"<|channel|>{channel}<|message|>{body}{end}"


def to_function(name: str, arguments: str) -> str:
    return message(f"commentary to=functions.{name} <|constrain|>json", arguments, "<|call|>")


CASES: list[tuple[Family, str, list[Delta]]] = [
    # Qwen3-Coder
    (QWEN_CODER, coder("get_weather", city="Paris"), PARIS),
    (QWEN_CODER, "Sure.\n" + coder("get_weather", city="Rome", days="2"), [TextDelta("Sure.\n"), *ROME]),
    (QWEN_CODER, coder("get_weather", city="Paris") + "\n" + coder("get_weather", city="Rome", days="2"), PARIS + ROME),
    (QWEN_CODER, coder("get_weather"), call("get_weather", "{}")),
    (QWEN_CODER, coder("get_weather", city="7"), call("get_weather", '{"city": "7"}')),
    (QWEN_CODER, coder("get_weather", exact="True", unit="C"), call("get_weather", '{"exact": true, "unit": "C"}')),
    (QWEN_CODER, coder("get_weather", exact="None"), call("get_weather", '{"exact": null}')),
    (QWEN_CODER, coder("get_weather", tags='["a"]'), call("get_weather", '{"tags": ["a"]}')),
    (QWEN_CODER, coder("get_weather", city="a\n<b>\n\n c "), call("get_weather", '{"city": "a\\n<b>\\n\\n c "}')),
    (QWEN_CODER, coder("files.find", what="4 <", n="4"), call("find", '{"what": "4 <", "n": 4}', "files")),
    (QWEN_CODER, coder("python", input='print("a\n")'), PYTHON),
    (QWEN_CODER, coder("nope", a="1"), [TextDelta(coder("nope", a="1"))]),
    (QWEN_CODER, "<think>\nhm\n</think>\n\n" + coder("get_weather", city="Paris"), [ReasoningDelta("\nhm\n"), *PARIS]),
    (
        QWEN_CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n1",
        [CallStart("function_call", "get_weather"), CallDelta('{"city": "Paris"')],
    ),
    # GLM
    (GLM, "\n" + glm("get_weather", city="Paris"), PARIS),
    (GLM, glm("get_weather", city="Paris") + "\n" + glm("get_weather", city="Rome", days="2"), PARIS + ROME),
    (GLM, "<tool_call>get_weather</tool_call>", call("get_weather", "{}")),
    (GLM, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", PARIS),
    (GLM, glm("files.find", what="a b", n="[1]"), call("find", '{"what": "a b", "n": [1]}', "files")),
    (GLM, glm("python", input='print("a\n")'), PYTHON),
    (GLM, glm("nope", a="1") + " ok", [TextDelta(glm("nope", a="1") + " ok")]),
    (GLM, "\n<think>hm</think>\nhello", [ReasoningDelta("hm"), TextDelta("hello")]),
    # Llama
    (LLAMA, '{"name": "get_weather", "parameters": {"city": "Paris"}}', PARIS),
    (LLAMA, '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', PARIS),
    (LLAMA, '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}', PARIS),
    (LLAMA, f'{{"name": "get_weather", "arguments": {JSON_PARIS}}}', PARIS),
    (
        LLAMA,
        f'{{"name": "get_weather", "parameters": {JSON_PARIS}}}; {{"name": "get_weather", "parameters": {JSON_ROME}}}',
        PARIS + ROME,
    ),
    (LLAMA, f'{{"name": "python", "parameters": {JSON_PYTHON}}}', PYTHON),
    (LLAMA, 'It is {"name": "get_weather"}.', [TextDelta('It is {"name": "get_weather"}.')]),
    (LLAMA, '{"a": [1, {"b": 2}]} is JSON', [TextDelta('{"a": [1, {"b": 2}]} is JSON')]),
    (LLAMA, '{"name": "nope", "parameters": {}}', [TextDelta('{"name": "nope", "parameters": {}}')]),
    (LLAMA, "\n {", [TextDelta("\n {")]),
    (LLAMA, " ; hello", [TextDelta(" ; hello")]),
    # Mistral
    (MISTRAL, f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON_PARIS}}}]', PARIS),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON_PARIS}, "id": "abcdefghi"}}]', PARIS),
    (
        MISTRAL,
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON_PARIS}}}, '
        f'{{"name": "get_weather", "arguments": {JSON_ROME}}}]',
        PARIS + ROME,
    ),
    (MISTRAL, f'[TOOL_CALLS][{{"arguments": {JSON_PARIS}, "name": "get_weather"}}]', PARIS),
    (MISTRAL, f'Well.[TOOL_CALLS][{{"name": "python", "arguments": {JSON_PYTHON}}}]', [TextDelta("Well."), *PYTHON]),
    (MISTRAL, '[TOOL_CALLS][{"name": "nope"}]', [TextDelta('[TOOL_CALLS][{"name": "nope"}]')]),
    (MISTRAL, "[THINK]hm[/THINK]hello", [ReasoningDelta("hm"), TextDelta("hello")]),
    (MISTRAL_ARGS, f"[TOOL_CALLS]get_weather[ARGS]{JSON_PARIS}", PARIS),
    (MISTRAL_ARGS, f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{JSON_PARIS}", PARIS),
    (MISTRAL_ARGS, f"[TOOL_CALLS]get_weather[ARGS]{JSON_PARIS}[TOOL_CALLS]get_weather[ARGS]{JSON_ROME}", PARIS + ROME),
    (MISTRAL_ARGS, f"Well.[TOOL_CALLS]python[ARGS]{JSON_PYTHON}", [TextDelta("Well."), *PYTHON]),
    (MISTRAL_ARGS, "[TOOL_CALLS]nope[ARGS]{}", [TextDelta("[TOOL_CALLS]nope[ARGS]{}")]),
    # DeepSeek
    (DEEPSEEK, deepseek(("get_weather", JSON_PARIS)), PARIS),
    (DEEPSEEK, deepseek(("get_weather", JSON_PARIS), ("get_weather", JSON_ROME)), PARIS + ROME),
    (DEEPSEEK, "Hm." + deepseek(("python", JSON_PYTHON)), [TextDelta("Hm."), *PYTHON]),
    (DEEPSEEK, deepseek(("nope", "{}")), [TextDelta(deepseek(("nope", "{}")))]),
    (DEEPSEEK_FENCED, fenced(("get_weather", JSON_PARIS)), PARIS),
    (DEEPSEEK_FENCED, fenced(("get_weather", JSON_PARIS), ("get_weather", JSON_ROME)), PARIS + ROME),
    (DEEPSEEK_FENCED, "<think>hm</think>\n\n" + fenced(("python", JSON_PYTHON)), [ReasoningDelta("hm"), *PYTHON]),
    # gpt-oss
    (HARMONY, message("final", "hello", "<|return|>"), [TextDelta("hello")]),
    (HARMONY, message("analysis", "hm") + message("final", "a", "<|return|>"), [ReasoningDelta("hm"), TextDelta("a")]),
    (HARMONY, message("analysis", "hm") + to_function("get_weather", JSON_PARIS), [ReasoningDelta("hm"), *PARIS]),
    (HARMONY, message("commentary", "I look.") + to_function("python", JSON_PYTHON), [TextDelta("I look."), *PYTHON]),
    (
        HARMONY,
        f" to=functions.get_weather<|channel|>commentary json<|message|>{JSON_PARIS}<|call|><|start|>assistant"
        + to_function("files.find", "{}"),
        [*PARIS, *call("find", "{}", "files")],
    ),
    (HARMONY, to_function("nope", "{}"), [TextDelta("{}")]),
    (
        HARMONY,
        message("commentary to=functions.get_weather json", '{"ci', "<|call|>"),
        [CallStart("function_call", "get_weather"), CallDelta('{"ci')],
    ),
    (HARMONY, message("final", "a <| b", ""), [TextDelta("a <| b")]),
    (HARMONY, "hello", [TextDelta("hello")]),
    (HARMONY, message("analysis", "hm", "") + "<|start|>assistant<|channel|>fin", [ReasoningDelta("hm")]),
]  # fmt: skip


def name_of(case: tuple[Family, str, list[Delta]]) -> str:
    return f"{case[0].name}-{CASES.index(case)}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_turn_reads_as_published(case):
    family, text, expected = case
    assert parse(family, text) == expected


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_one_cut_anywhere_changes_nothing(case):
    family, text, expected = case
    for cut in range(len(PLAIN.encode(text)) + 1):
        assert parse(family, text, [cut]) == expected


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_without_tools_nothing_is_a_call(case):
    family, text, _ = case
    assert not any(isinstance(delta, CallStart) for delta in parse(family, text, tools=ToolSet({})))


@given(st.data(), st.lists(st.integers(0, 400), max_size=9))
def test_cuts_never_matter(data, cuts):
    family = data.draw(st.sampled_from(list(FAMILIES.values())))
    pieces = [text for other, text, _ in CASES if other is family] or ["a <tool_call>"]
    garbage = st.text(alphabet="<|>{}[]\n;a \"'", max_size=6)
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | garbage, max_size=4)))
    assert parse(family, text, cuts) == parse(family, text) == parse(family, text, [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
WRITTEN = st.fixed_dictionaries(
    {},
    optional={
        "city": st.text(max_size=9),
        "days": st.integers(),
        "exact": st.booleans(),
        "unit": st.sampled_from("CF"),
        "tags": st.lists(VALUES, max_size=3),
    },
)


@given(WRITTEN, st.integers(1, 3))
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_calls_that_are_written_are_read_back(family, arguments, count):
    one = "".join(text for text, _ in family.calls.write("get_weather", json.dumps(arguments)))
    deltas = parse(family, family.calls.between_blocks.join([one] * count))
    assert [type(delta) for delta in deltas] == [CallStart, CallDelta, CallEnd] * count
    assert [json.loads(delta.text) for delta in deltas if isinstance(delta, CallDelta)] == [arguments] * count


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_call_is_counted_with_its_last_id(family):
    text = "".join(text for text, _ in family.calls.write("get_weather", '{"city": "Paris"}'))
    parser, ids = reader(family), PLAIN.encode(text)
    parser.feed(ids[:-1])
    assert parser.num_calls == 0
    parser.feed(ids[-1:])
    assert (parser.num_calls, parser.labels) == (1, ["get_weather"])


def test_arguments_come_while_they_are_sampled():
    parser = reader(GLM)
    parser.feed(PLAIN.encode("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Pa"))
    assert parser.feed(PLAIN.encode("ris</arg_value>")) == [CallDelta('{"city": "Paris"')]


def test_json_that_begins_a_turn_of_llama_is_held_no_longer_than_it_may_be_a_call():
    parser = reader(LLAMA)
    assert parser.feed(PLAIN.encode('{"a": 1')) == []
    assert parser.feed(PLAIN.encode("}")) == [TextDelta('{"a": 1}')]
    assert reader(HERMES).feed(PLAIN.encode('{"a": 1')) == [TextDelta('{"a": 1')]


# --- cut steps


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


# Without a tag, an object that does not begin like a call is as likely an answer in JSON.
USUAL = [case for case in range(len(CASES)) if CASES[case][0] is not LLAMA or not CASES[case][1].startswith('{"type')]


@pytest.mark.parametrize("case", USUAL)
def test_a_step_that_is_cut_shows_no_more_text_than_the_whole_one(case):  # P29
    family, text, whole = CASES[case]
    ids = PLAIN.encode(text)
    for size in range(len(ids)):
        parser = reader(family)
        deltas = joined(parser.feed(ids[:size]) + parser.close(is_cut=True))
        assert text_of(whole).startswith(text_of(deltas)), text[:size]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"answer": [1, 2', '{"answer": [1, 2'),
        ('{"name": "Ada", "born', '{"name": "Ada", "born'),
        ('{"name": "get_w', ""),
        ('{"na', ""),
    ],
)
def test_without_a_tag_a_cut_answer_in_json_is_text_unless_it_begins_like_a_call(text, shown):
    parser = reader(LLAMA)
    assert text_of(parser.feed(PLAIN.encode(text)) + parser.close(is_cut=True)) == shown
