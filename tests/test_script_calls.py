"""Scripted calls meet the client's tools."""

import json

import pytest

from engine.backends.base import CallStart, ToolChoice
from engine.backends.scenario_values import ScriptedCall
from engine.backends.script_calls import ReadyCall, example, ready_call
from engine.errors import BackendError
from engine.toolspec import BUILT_IN_SCHEMAS, Tool

AUTO = ToolChoice()
WEATHER = Tool(
    "function", "get_weather", parameters={"type": "object", "properties": {"city": {}}, "required": ["city"]}
)
NOTE = Tool("custom", "note", namespace="desk")
SHELL = Tool("shell", "shell", parameters=BUILT_IN_SCHEMAS["shell"])
TOOLS = [WEATHER, NOTE, SHELL]


def ready(choice: ToolChoice = AUTO, tools: list[Tool] = TOOLS, **fields: object) -> ReadyCall | None:
    call = ScriptedCall(where="steps[0].call", **fields)  # type: ignore[arg-type]  # fields of the test's choice
    return ready_call(call, tools, choice, {"turn": "3"})


@pytest.mark.parametrize(
    ("fields", "start", "text"),
    [
        (
            {"name": "get_weather", "arguments": {"city": "Oslo"}},
            ("function_call", "get_weather", None),
            '{"city": "Oslo"}',
        ),
        ({"name": "get_weather"}, ("function_call", "get_weather", None), '{"city": "city"}'),
        ({}, ("function_call", "get_weather", None), '{"city": "city"}'),
        ({"kind": "custom"}, ("custom_tool_call", "note", "desk"), "scripted input"),
        ({"name": "note", "arguments": "free {turn}"}, ("custom_tool_call", "note", "desk"), "free 3"),
        ({"name": "note", "namespace": "desk", "arguments": "a"}, ("custom_tool_call", "note", "desk"), "a"),
        ({"kind": "shell"}, ("shell_call", "shell", None), '{"commands": []}'),
        ({"name": "get_weather", "arguments": "not {turn} json"}, ("function_call", "get_weather", None), "not 3 json"),
        (
            {"name": "get_weather", "arguments": {"a": ["{turn}", {"b": 'q"{turn}', "c": 1}]}},
            ("function_call", "get_weather", None),
            json.dumps({"a": ["3", {"b": 'q"3', "c": 1}]}),
        ),
        (
            {"name": "get_weather", "arguments": {"city": "Zürich"}},
            ("function_call", "get_weather", None),
            '{"city": "Zürich"}',
        ),
    ],
)
def test_a_call_finds_its_tool_and_its_arguments(fields, start, text):
    assert ready(**fields) == ReadyCall(CallStart(*start), text)


def test_an_approval_needs_no_tool():
    found = ready(tools=[], kind="mcp_approval", name="wipe", server_label="disk", arguments={"x": 1})
    assert found == ReadyCall(CallStart("mcp_approval_request", "wipe", None, "disk"), '{"x": 1}')


@pytest.mark.parametrize(
    ("fields", "tools", "message"),
    [
        (
            {"name": "gone"},
            TOOLS,
            "calls the tool 'gone' at {}, but the client offers {}, note (custom), shell (shell).",
        ),
        (
            {"name": "note", "kind": "function"},
            TOOLS[:2],
            "calls the function tool 'note' at {}, but the client offers {}, note (custom).",
        ),
        (
            {"name": "note", "namespace": "x"},
            [NOTE],
            "calls the tool 'note' at {}, but the client offers note (custom).",
        ),
        ({}, [], "calls the first tool at {}, but the client offers no tools."),
        ({"kind": "computer"}, [], "calls the first computer tool at {}, but the client offers no tools."),
    ],
)
def test_a_tool_that_is_not_offered_is_an_error_that_says_what_is(fields, tools, message):
    with pytest.raises(BackendError) as error:
        ready(tools=tools, **fields)
    assert error.value.message == "The scenario " + message.format("steps[0].call", "get_weather (function)")


@pytest.mark.parametrize(
    ("choice", "fields", "name"),
    [
        (ToolChoice("none"), {}, None),
        (ToolChoice("none"), {"name": "gone"}, None),
        (ToolChoice("auto", frozenset({"note"})), {}, "note"),
        (ToolChoice("required", frozenset({"desk.note"})), {}, "note"),
        (ToolChoice("auto", frozenset({"note"})), {"name": "get_weather"}, None),
        (ToolChoice("required", frozenset({"get_weather"})), {"name": "get_weather"}, "get_weather"),
    ],
)
def test_tool_choice_decides_which_calls_are_made(choice, fields, name):
    found = ready(choice, **fields)
    assert (found and found.start.name) == name


TREE = {"$defs": {"t": {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}}, "required": ["c"]}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "text"),
        ({"type": "object"}, {}),
        ({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"type": "object", "required": ["a"]}, {"a": "a"}),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, "text"),
        ({"type": "string", "minLength": 6}, "text.."),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"enum": ["x", "y"]}, "x"),
        ({"const": 7}, 7),
        ({"type": "string", "default": "d"}, "d"),
        ({"type": "string", "examples": ["e"]}, "e"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"type": "array"}, []),
        ({"type": "array", "minItems": 2, "items": {"type": "boolean"}}, [True, True]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, 1),
        ({"$ref": "#/nowhere"}, None),
        (True, None),
    ],
)
def test_an_example_fits_its_schema(schema, value):
    assert example(schema, schema if isinstance(schema, dict) else {}) == value


def test_a_schema_that_refers_to_itself_comes_to_an_end():
    assert "c" in example({"$ref": "#/$defs/t"}, TREE)
