"""request.py: what a create asks for, what is echoed, and which limits it meets."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from engine.backends.base import ToolChoice
from engine.content import InputText
from engine.errors import RequestError
from engine.frames import Append, decode_frame
from engine.items import Message
from engine.request import read_append, read_create, read_input
from engine.settings import Settings
from tests.machines import NOTE, SETTINGS, WEATHER, create, request
from tests.test_events import check_response_object


def refusal(settings: Settings = SETTINGS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        request(settings, **fields)
    return caught.value


def echo(**fields: Any) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(request(**fields).echo))
    return value


def test_string_input_is_a_user_message() -> None:
    assert request(input="hi").items == [Message(role="user", content=[InputText(text="hi")])]


def test_defaults() -> None:
    asked = request()
    assert asked.spec("resp_1").response_id == "resp_1"
    assert (asked.tool_choice, asked.generate, asked.wants_tokens, asked.text_format) == (
        ToolChoice(),
        True,
        False,
        None,
    )
    spec = asked.spec("resp_1")
    assert (spec.model, spec.temperature, spec.top_p, spec.max_output_tokens) == ("toy", None, None, None)
    assert (spec.parallel_tool_calls, spec.reasoning_effort, spec.seed, spec.tools) == (True, None, None, [])


def test_everything_that_is_asked_for_reaches_the_backend() -> None:
    spec = request(
        model="m", instructions="be good", tools=[WEATHER, NOTE], temperature=0.5, top_p=0.25, presence_penalty=1,
        frequency_penalty=-1, seed=7, max_output_tokens=99, parallel_tool_calls=False,
        text={"format": {"type": "json_object"}}, reasoning={"effort": "low"},
    ).spec("r")  # fmt: skip
    assert (spec.model, spec.instructions, spec.temperature, spec.top_p) == ("m", "be good", 0.5, 0.25)
    assert (spec.presence_penalty, spec.frequency_penalty, spec.seed, spec.max_output_tokens) == (1.0, -1.0, 7, 99)
    assert (spec.parallel_tool_calls, spec.text_format, spec.reasoning_effort) == (
        False,
        {"type": "json_object"},
        "low",
    )
    assert [tool.name for tool in spec.tools] == ["weather", "note"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": None},
        {"text": {"verbosity": "low"}},
        {"text": {"format": None}},
        {"text": None, "reasoning": None, "metadata": None, "tools": None, "tool_choice": None},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}, "reasoning": {"effort": "low"}},
    ],
)
def test_echo_has_every_required_key_with_the_right_type(fields: dict[str, Any]) -> None:
    check_response_object(echo(**fields))


def test_echo_repeats_what_was_asked() -> None:
    choice = {"type": "function", "name": "weather"}
    tool = WEATHER | {"description": None, "strict": None, "x_unknown": 1}
    value = echo(
        tools=[tool], tool_choice=choice, metadata={"k": "v"}, user="u", safety_identifier="s", prompt_cache_key="p",
        text={"verbosity": "low"}, reasoning={"effort": "high"}, resumable=True, keep_open=True, top_logprobs=2,
        max_tool_calls=3, instructions="i",
    )  # fmt: skip
    assert value["tools"] == [tool]
    assert value["tool_choice"] == choice
    assert (value["metadata"], value["user"], value["safety_identifier"]) == ({"k": "v"}, "u", "s")
    assert (value["prompt_cache_key"], value["instructions"], value["top_logprobs"]) == ("p", "i", 2)
    assert value["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert value["reasoning"] == {"effort": "high", "summary": None}
    assert (value["resumable"], value["keep_open"], value["max_tool_calls"]) == (True, True, 3)


def test_echo_keeps_no_frame_alive() -> None:
    tracemalloc.start()
    frame = create(input="x" * 1_000_000, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    kept = read_create(frame, default_model="toy", settings=SETTINGS).echo
    del frame
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.tools
    assert held < 100_000


def test_skipped_tools_are_said() -> None:
    assert echo(tools=[WEATHER, {"type": "web_search"}])["skipped_tools"] == [
        {"index": 1, "type": "web_search", "reason": "not supported by this server"}
    ]
    assert "skipped_tools" not in echo(tools=[WEATHER])


def test_setting_refuses_unknown_tools() -> None:
    error = refusal(Settings(skip_unknown_tools=False), tools=[{"type": "web_search"}])
    assert error.param == "tools[0].type"


@pytest.mark.parametrize(
    ("asked", "setting", "keeps"), [(None, True, True), (None, False, False), (False, True, False)]
)
def test_keep_open_falls_back_to_the_setting(asked: bool | None, setting: bool, keeps: bool) -> None:
    assert request(Settings(keep_open=setting), keep_open=asked).echo.keep_open is keeps


def test_include_and_generate() -> None:
    assert request(include=["reasoning.encrypted_content", "response.tokens"]).wants_tokens
    assert not request(generate=False).generate


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "nonsense"}]}, "input[0].type", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal(**fields)
    assert (error.param, error.code, error.status) == (param, code, 400)


@pytest.mark.parametrize(
    "fields", [{"generate": False}, {"instructions": "say something"}, {"previous_response_id": "resp_1"}]
)
def test_empty_input_is_enough_when_something_else_is_there(fields: dict[str, Any]) -> None:
    assert request(input=[], **fields).items == []


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        (None, None),
        ({}, None),
        ({"format": None}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
        ),
    ],
)
def test_text_format(text: Any, format_: Any) -> None:
    assert request(text=text).text_format == format_


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, None),
        ({"tool_choice": None}, None),
        ({"tool_choice": "auto"}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice("none")),
    ],
)
def test_append_sets_a_choice_only_when_it_says_one(given: dict[str, Any], choice: ToolChoice | None) -> None:
    data = msgspec.json.encode({"type": "response.append", "input": "more"} | given)
    frame = decode_frame(data, max_depth=9)
    assert isinstance(frame, Append)
    assert read_append(frame, [], SETTINGS) == ([Message(role="user", content=[InputText(text="more")])], choice)


def test_append_that_is_wrong_names_its_field() -> None:
    for given, param in (({"tool_choice": "required"}, "tool_choice"), ({"input": [{"type": "x"}]}, "input[0].type")):
        frame = decode_frame(msgspec.json.encode({"type": "response.append", "input": []} | given), max_depth=9)
        assert isinstance(frame, Append)
        with pytest.raises(RequestError) as caught:
            read_append(frame, [], SETTINGS)
        assert caught.value.param == param


# --- limits ------------------------------------------------------------------------------------------------------


def test_max_items_is_reached() -> None:
    settings = Settings(max_items=3)
    message = {"role": "user", "content": "x"}
    assert len(request(settings, input=[message] * 3).items) == 3
    error = refusal(settings, input=[message] * 4)
    assert (error.param, error.code) == ("input", "too_many_items")
    with pytest.raises(RequestError):
        read_input([msgspec.Raw(b"{}")] * 4, settings)


def test_max_tools_is_reached() -> None:
    settings = Settings(max_tools=3)
    tools = [{"type": "function", "name": f"f{i}"} for i in range(4)]
    assert len(request(settings, tools=tools[:3]).tools) == 3
    error = refusal(settings, tools=tools)
    assert (error.param, error.code) == ("tools", "too_many_tools")


def test_what_a_grammar_is_made_of_has_limits() -> None:
    """Compiling a schema of 30,000 properties takes a minute, in which nothing else goes on."""
    settings = Settings(max_schema_bytes=200, max_tools_bytes=800)
    long = {"type": "function", "name": "f", "parameters": {"type": "object", "description": "x" * 200}}
    short = {"type": "function", "name": "g", "description": "x" * 100}
    assert len(request(settings, tools=[short]).tools) == 1
    error = refusal(settings, tools=[short, long])
    assert (error.param, error.code) == ("tools[1]", "invalid_function_parameters")
    error = refusal(settings, tools=[short, {"type": "namespace", "name": "n", "tools": [short, long]}])
    assert error.param == "tools[1].tools[1]"
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a" * 200}
    assert refusal(settings, tools=[{"type": "custom", "name": "c", "format": grammar}]).param == "tools[0]"
    many = [short | {"name": f"g{number}"} for number in range(7)]
    assert refusal(settings, tools=many).param == "tools"
    schema = {"type": "json_schema", "name": "n", "schema": {"enum": ["x" * 200]}}
    error = refusal(settings, text={"format": schema})
    assert (error.param, error.code) == ("text.format.schema", "invalid_json_schema")


def test_max_tools_counts_the_tools_of_namespaces() -> None:
    settings = Settings(max_tools=3)
    tools = [{"type": "function", "name": f"f{i}"} for i in range(4)]
    assert len(request(settings, tools=[{"type": "namespace", "name": "n", "tools": tools[:3]}]).tools) == 3
    assert refusal(settings, tools=[{"type": "namespace", "name": "n", "tools": tools}]).code == "too_many_tools"
