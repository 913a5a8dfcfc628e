"""transformers_parser.py: a model that only its folder knows, read by transformers, cut anywhere."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from engine.backends.base import CallDelta, CallEnd, CallStart, ReasoningDelta, RunSpec, StepSpec, TextDelta, ToolChoice
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.vocabulary import Span
from engine.errors import RequestError
from engine.toolspec import Tool
from tests.test_parser import joined
from tests.tiny import PLAIN, STOP_ID, save_format

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = Tool("function", "get_weather", "Weather", CITY)
# A syntax that is none of ours.
RESPONSES = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "((", "close_pattern": r"\)\)\s*", "content": "text"},
        "tool_calls": {
            "open_pattern": r"call:(?P<name>\w+)",
            "close_pattern": r":end\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*|$", "content": "text"},
    },
}
TEMPLATE = PLAIN.replace(
    "{% for message in messages %}",
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}",
    1,
).replace(
    "message['content'] + '",
    "message['content'] + (message['tool_calls'][0]['function'] | tojson if 'tool_calls' in message else '') + '",
    1,
)


@pytest.fixture(scope="module")
def form(tmp_path_factory) -> PromptFormat:
    folder: Path = save_format(tmp_path_factory.mktemp("form"), TEMPLATE)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"response_template": RESPONSES}))
    return PromptFormat.load(folder)


def parse(form: PromptFormat, text: str, cuts: list[int] | None = None, *, is_cut: bool = False):
    prompt = Prompt(form, RunSpec(response_id="r", model="m", tools=[WEATHER]))
    parser = prompt.new_parser(StepSpec())
    ids = [*form.encode([Span(text, True)]), *([] if is_cut else [STOP_ID])]
    borders = range(len(ids) + 1) if cuts is None else sorted({0, len(ids), *cuts})
    deltas = [delta for start, end in pairwise(borders) for delta in parser.feed(ids[start:end])]
    return joined(deltas + parser.close(is_cut=is_cut)), parser


def call(arguments: str):
    return [CallStart("function_call", "get_weather"), CallDelta(arguments), CallEnd()]


CASES = {
    "Hello.": [TextDelta("Hello.")],
    "((hm))\nHello.": [ReasoningDelta("hm"), TextDelta("Hello.")],
    'call:get_weather{"city": "Paris"}:end': call('{"city": "Paris"}'),
    '((hm))Well. call:get_weather{"days": "7"}:end': [
        ReasoningDelta("hm"),
        TextDelta("Well. "),
        *call('{"days": 7}'),
    ],
    'call:get_weather{}:end call:get_weather{"city": "a"}:end': [*call("{}"), *call('{"city": "a"}')],
    "call:nope{}:end": [TextDelta("{}")],
    "call:get_weather{:end": [TextDelta("{")],
}


@pytest.mark.parametrize("text", CASES)
def test_an_answer_is_read_as_the_folder_says_wherever_it_is_cut(form, text):
    assert parse(form, text)[0] == CASES[text]
    for cut in range(1, len(form.encode([Span(text, True)]))):
        assert parse(form, text, [cut])[0] == CASES[text]


def test_calls_are_counted_and_known(form):
    _, parser = parse(form, "call:get_weather{}:end")
    assert (parser.num_calls, parser.labels) == (1, ["get_weather"])


def test_a_call_that_nothing_can_hold_cannot_be_required(form):
    prompt = Prompt(form, RunSpec(response_id="r", model="m", tools=[WEATHER], text_format={"type": "json_object"}))
    assert "start: answer" in prompt.constraint(StepSpec()).grammar
    with pytest.raises(RequestError) as caught:
        prompt.constraint(StepSpec(ToolChoice("required")))
    assert caught.value.param == "tool_choice"


def test_its_template_is_tried_like_all_others(form):
    assert (form.family.name, form.family.shows_tools, form.family.shows_calls) == ("transformers", True, True)


@pytest.mark.parametrize("rest", ["", '{"city"', '{"city": "Paris"}:en'])
def test_a_call_that_is_cut_is_no_text(form, rest):
    deltas, _ = parse(form, f"((hm))Well. call:get_weather{rest}", is_cut=True)
    assert deltas == [ReasoningDelta("hm"), TextDelta("Well. ")]
