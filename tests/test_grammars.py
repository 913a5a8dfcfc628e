"""grammar.py and what it is made of: every family is held to calls that its parser reads, and to nothing narrower."""

import functools
import json
import tempfile
from pathlib import Path

import jsonschema
import llguidance
import numpy as np
import pytest

from engine.backends.base import CallDelta, CallEnd, CallStart, RunSpec, StepSpec, TextDelta, ToolChoice
from engine.backends.constraint import Constraint
from engine.backends.guide import Guide, Guides
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.vocabulary import Span
from engine.errors import RequestError
from engine.toolspec import Tool
from tests.family_formats import NAMES, save_family
from tests.test_parser import joined
from tests.tiny import PLAIN, SMOLLM, VOCAB_SIZE, save_format

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "unit"],
}
WEATHER = Tool("function", "get_weather", "Weather", CITY)
LOOK = Tool("function", "look", "", {"type": "object", "properties": {}}, namespace="files")
PICK = Tool(
    "function",
    "pick",
    parameters={"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]},
)
SQL = Tool("custom", "sql", grammar={"type": "grammar", "syntax": "regex", "definition": r"SELECT [a-z*]{1,9};"})
SUM = Tool(
    "custom",
    "sum",
    grammar={"type": "grammar", "syntax": "lark", "definition": 'start: N ("+" N)*\nN: /[0-9]{1,3}/ // a number'},
)
SAY = Tool(
    "custom",
    "say",
    grammar={"syntax": "lark", "definition": 'start: "say \\"" W "\\"" NL\nW: /[a-z]+/\nNL: /\\n/'},
)
REQUIRED = StepSpec(ToolChoice("required"))
EVERY = [*NAMES, "smollm", "in-text"]


class Family:
    """A family's format, and what holds to its grammars."""

    def __init__(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if name in NAMES:
                save_family(folder, name)
            else:
                save_format(folder, SMOLLM if name == "smollm" else PLAIN)
            self.form = PromptFormat.load(folder)
            self.guides = Guides(
                folder / "tokenizer.json", vocab_size=VOCAB_SIZE + 100, stop_ids=self.form.stops_in_order
            )

    def prompt(self, *tools: Tool, **spec) -> Prompt:
        return Prompt(self.form, RunSpec(response_id="r", model="m", tools=list(tools), **spec))

    def ids(self, text: str) -> list[int]:
        return self.form.encode([Span(text, True)])

    def call(self, label: str, arguments: dict) -> str:
        return "".join(text for text, _ in self.form.family.calls.write(label, json.dumps(arguments)))

    def accepts(self, constraint: Constraint, text: str) -> bool:
        """Whether the text can be drawn under the constraint, and the turn end there."""
        guide, ids = self.guides.guide(constraint, hands_out=False), self.ids(text)
        for index, token_id in enumerate([*ids, None]):
            row = np.zeros(VOCAB_SIZE + 100, np.float32)
            guide.restrict(row)
            if token_id is None:
                return any(np.isfinite(row[stop]) for stop in self.form.stops_in_order)
            if not np.isfinite(row[token_id]):
                return False
            guide.advance(token_id)
            if token_id in self.form.stops_in_order:
                return index == len(ids) - 1
        raise AssertionError

    @property
    def thought(self) -> str:
        """What ends the thoughts that a turn begins with, if it does."""
        return "hm\n</think>\n\n" if self.form.begins_in_thought("user") else ""

    @property
    def stop(self) -> str:
        """What the model stops at behind a call, where the grammar says so."""
        return self.form.family.call_stop if self.form.family.call_stop == "<|observation|>" else ""


@functools.cache
def family(name: str) -> Family:
    return Family(name)


@pytest.mark.parametrize("name", EVERY)
def test_a_required_call_may_come_as_it_is_written_and_no_other_may(name):
    of = family(name)
    held = of.prompt(WEATHER, LOOK).constraint(REQUIRED)
    assert held.mode == "always"
    good = of.call("get_weather", {"city": "Paris", "unit": "C"})
    assert of.accepts(held, of.thought + good + of.stop)
    assert of.accepts(held, of.thought + of.call("files.look", {}) + of.stop)
    for bad in (
        of.call("get_weather", {"city": "Paris"}),
        of.call("get_weather", {"city": "Paris", "unit": "K"}),
        of.call("get_weather", {"city": "Paris", "unit": "C", "more": 1}),
        of.call("get_weather", {"city": "Paris", "days": "x", "unit": "C"}),
        of.call("other", {}),
        "Paris",
        "",
    ):
        assert not of.accepts(held, of.thought + bad + of.stop)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_second_call_may_come_where_calls_may_be_parallel(name, parallel):
    of = family(name)
    held = of.prompt(LOOK, parallel_tool_calls=parallel).constraint(REQUIRED)
    calls, one = of.form.family.calls, of.call("files.look", {})
    both = one + calls.between_blocks + one
    if calls.between is not None:
        inner = one.removeprefix(calls.open + calls.begin).removesuffix(calls.end + calls.close)
        both = calls.open + calls.begin + inner + calls.between + inner + calls.end + calls.close
    assert of.accepts(held, of.thought + both + of.stop) == (parallel and not of.form.family.is_harmony)


@pytest.mark.parametrize("name", EVERY)
def test_auto_leaves_the_model_free_until_it_opens_a_call(name):
    of = family(name)
    held = of.prompt(WEATHER).constraint(StepSpec())
    kind = of.form.family.name
    spans_the_turn = ("llama", "harmony", "hermes-in-text")  # no token opens a call there, and nothing else
    assert held.mode == ("decide" if kind == "smollm2" else "always" if kind in spans_the_turn else "on_trigger")
    if held.mode == "decide":
        return
    text = "<|channel|>final<|message|>It is late.\n{" if kind == "harmony" else "It is late.\n{"
    assert of.accepts(held, text)
    call = of.call("get_weather", {"city": "Paris", "unit": "C"})
    assert of.accepts(held, call + of.stop)
    if kind not in ("llama", "harmony"):
        assert of.accepts(held, of.thought + "Well. " + call + of.stop)
    bad = call.replace("unit", "unix")
    assert not of.accepts(held, bad)


def walk(of: Family, guide: Guide, seed: int, limit: int = 600, *, may_go_on: bool = False) -> list[int]:
    """Random draws under the grammar, tags likelier than others, to its end, or so far if it may go on."""
    chance = np.random.default_rng(seed)
    begun = of.ids("<|channel|>commentary to=functions.") if of.form.family.is_harmony else []  # or it thinks for ever
    ids = [*begun, *guide.start(begun)]
    while not ids or ids[-1] not in of.form.stops_in_order:
        row = chance.normal(0, 1, VOCAB_SIZE + 100).astype(np.float32)
        for token_id in (*of.form.vocabulary.added.values(), *of.ids('"}]')):
            row[token_id] += 4 + len(ids) / 20
        if of.form.family.calls.pairs and len(ids) > 60:
            row[next_of(of, ids, of.form.family.calls.pairs.after_value)] += 99
            row[of.form.stops_in_order[0]] += 199
        guide.restrict(row)
        drawn = int(row.argmax())
        ids += [drawn, *guide.advance(drawn)]
        if len(ids) >= limit and may_go_on:
            break
        assert len(ids) < limit
    return ids


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", EVERY)
def test_whatever_is_drawn_under_the_grammar_is_a_valid_call(name, seed):
    of = family(name)
    prompt = of.prompt(WEATHER, SQL, SUM)
    begin(prompt)
    guide = of.guides.guide(prompt.constraint(REQUIRED))
    parser = prompt.new_parser(REQUIRED)
    deltas = parser.feed(walk(of, guide, seed)) + parser.close()
    calls = [delta for delta in deltas if isinstance(delta, CallStart)]
    assert calls and sum(isinstance(delta, CallEnd) for delta in deltas) == len(calls)
    for index, delta in enumerate(deltas):
        if not isinstance(delta, CallStart):
            continue
        arguments = deltas[index + 1].text
        match delta.name:
            case "get_weather":
                value = json.loads(arguments)
                if of.form.family.calls.pairs is not None:  # a text's length is not held there
                    value["city"] = value["city"][:12]
                jsonschema.validate(value, CITY)
            case "sql":
                assert arguments.startswith("SELECT ") and arguments.endswith(";")
            case "sum":
                assert all(part.isdigit() for part in arguments.split("+"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", EVERY)
def test_whatever_is_drawn_under_auto_has_no_call_that_does_not_fit(name, seed):
    of = family(name)
    prompt = of.prompt(PICK)
    begin(prompt)
    guide = of.guides.guide(prompt.constraint(StepSpec()))
    parser = prompt.new_parser(StepSpec())
    ids = walk(of, guide, seed, may_go_on=True)
    deltas = parser.feed(ids) + parser.close()
    calls = [json.loads(delta.text) for delta in joined(deltas) if isinstance(delta, CallDelta)]
    ended = sum(isinstance(delta, CallEnd) for delta in deltas)
    for arguments in calls[:ended]:
        jsonschema.validate(arguments, PICK.parameters)
    opening = of.form.family.calls.open
    if opening and of.form.family.auto.mode != "decide" and ids[-1] in of.form.stops_in_order:
        said = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        assert opening not in said  # what looks like a call and is none would be text


def next_of(of: Family, ids: list[int], tag: str) -> int:
    """The id that goes on with a tag, or begins it."""
    ahead = of.ids(tag)
    done = next(size for size in range(len(ahead) - 1, -1, -1) if ids[len(ids) - size :] == ahead[:size])
    return ahead[done]


def begin(prompt: Prompt) -> None:
    """As if a user's turn had been given: the next one of the model follows it."""
    prompt._last_role = "user"


ANSWER = {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}


@pytest.mark.parametrize("name", EVERY)
def test_an_answer_is_held_to_its_format_beside_calls(name):
    of = family(name)
    held = of.prompt(WEATHER, text_format=ANSWER).constraint(StepSpec())
    before = "<|channel|>final<|message|>" if of.form.family.is_harmony else of.thought
    assert of.accepts(held, before + '{"n": 1}')
    assert not of.accepts(held, before + "n is 1")
    call = of.call("get_weather", {"city": "Paris", "unit": "C"})
    assert of.accepts(held, of.thought + call + of.stop)
    alone = of.prompt(text_format={"type": "json_object"}).constraint(StepSpec())
    assert of.accepts(alone, before + '{"a": [1]}')
    assert not of.accepts(alone, before + "[1]")


@pytest.mark.parametrize("name", ["qwen3", "glm-4.6", "gpt-oss"])
def test_a_model_that_thinks_may_think_before_what_it_has_to_do(name):
    of = family(name)
    held = of.prompt(LOOK).constraint(REQUIRED)
    thought = {
        "qwen3": "<think>\nhm\n</think>\n\n",
        "glm-4.6": "\n<think>hm</think>\n",
        "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    }[name]
    assert of.accepts(held, thought + of.call("files.look", {}) + of.stop)
    assert not of.accepts(held, thought)


# --- custom tools


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("tool", "good", "bad"),
    [
        (SQL, "SELECT a;", "DROP a;"),
        (SUM, "1+22", "1+"),
        (SUM, "1+22", "a"),
        (SAY, 'say "hi"\n', "say hi\n"),
    ],
)  # fmt: skip
def test_a_custom_tool_is_held_to_its_own_grammar(name, tool, good, bad):
    of = family(name)
    held = of.prompt(tool).constraint(REQUIRED)
    assert of.accepts(held, of.thought + of.call(tool.name, {"input": good}) + of.stop)
    assert not of.accepts(held, of.thought + of.call(tool.name, {"input": bad}) + of.stop)


def test_a_grammar_that_cannot_be_said_of_json_leaves_the_text_free():
    tool = Tool("custom", "odd", grammar={"syntax": "lark", "definition": 'start: /["]+/'})
    of = family("qwen2.5")
    held = of.prompt(tool).constraint(REQUIRED)
    assert not llguidance.LLMatcher(of.guides._tokenizer, held.grammar).is_error()


# --- what cannot be compiled


@pytest.mark.parametrize(
    ("tool", "param", "said"),
    [
        (
            Tool("function", "f", parameters={"type": "object", "properties": {"a": {"type": "strin"}}}),
            "tools[1].parameters.properties.a.type",
            "Invalid type: strin",
        ),
        (
            Tool("function", "f", parameters={"type": "object", "properties": {"a": {"not": {}}}}, strict=True),
            "tools[1].parameters.properties.a.not",
            'Unimplemented keys: ["not"]',
        ),
        (
            Tool(
                "function",
                "f",
                parameters={
                    "anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string", "pattern": "("}}]
                },
            ),
            "tools[1].parameters.anyOf[1].items.pattern",
            "regex parse error",
        ),
        (
            Tool("function", "f", parameters={"$ref": "#/nowhere"}),
            "tools[1].parameters.$ref",
            "Pointer '/nowhere' does not exist",
        ),
        (
            Tool("custom", "f", grammar={"syntax": "lark", "definition": "start: nothing"}),
            "tools[1].format.definition",
            "unknown name",
        ),
        (Tool("custom", "f", grammar={"syntax": "regex", "definition": "("}), "tools[1].format.definition", "unclosed"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_its_keyword(tool, param, said):
    with pytest.raises(RequestError) as caught:
        family("qwen2.5").prompt(WEATHER, tool)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert said in caught.value.message


def test_a_keyword_that_a_grammar_cannot_express_loosens_it_unless_it_is_strict():
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    family("qwen2.5").prompt(Tool("function", "f", parameters=schema))
    with pytest.raises(RequestError) as caught:
        family("qwen2.5").prompt(text_format={"type": "json_schema", "schema": schema, "strict": True})
    assert (caught.value.param, caught.value.code) == ("text.format.schema.properties.a.not", "invalid_json_schema")


def test_a_complete_answer_is_text_to_the_parser():
    of = family("llama-3")
    prompt = of.prompt(WEATHER, text_format=ANSWER)
    parser = prompt.new_parser(StepSpec())
    deltas = parser.feed(of.ids('{"n": 1}')) + parser.close()
    assert deltas == [TextDelta('{"n": 1}')] and not any(isinstance(delta, CallDelta) for delta in deltas)
