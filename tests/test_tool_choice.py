"""tool_choice.py: every form of the choice, and what is said about one that cannot be kept."""

import json
from typing import Any

import msgspec
import pytest

from engine.backends.base import ToolChoice
from engine.errors import RequestError
from engine.tool_choice import decode_tool_choice
from engine.toolspec import Tool, decode_tools

OFFERED = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "c"},
    {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "computer_use_preview"},
    {"type": "tool_search"},
    {"type": "web_search"},
]
TOOLS, _ = decode_tools([msgspec.Raw(json.dumps(tool).encode()) for tool in OFFERED])

# Each way to name a tool, and the name of the tool that is meant.
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"type": "function", "name": "f"}, "f"),
    ({"type": "function", "name": "find"}, "find"),
    ({"type": "custom", "name": "c"}, "c"),
    ({"type": "local_shell"}, "local_shell"),
    ({"type": "shell"}, "shell"),
    ({"type": "apply_patch"}, "apply_patch"),
    ({"type": "computer"}, "computer"),
    ({"type": "computer_use"}, "computer"),
    ({"type": "computer_use_preview"}, "computer"),
    ({"type": "tool_search"}, "tool_search"),
]


def choose(value: Any, tools: list[Tool] = TOOLS) -> ToolChoice:
    return decode_tool_choice(msgspec.Raw(json.dumps(value).encode()), tools)


def refusal(value: Any, tools: list[Tool] = TOOLS) -> str | None:
    with pytest.raises(RequestError) as caught:
        choose(value, tools)
    assert caught.value.status == 400
    return caught.value.param


@pytest.mark.parametrize(("value", "mode"), [(None, "auto"), ("auto", "auto"), ("none", "none"), ("required",) * 2])
def test_a_word_is_a_mode_for_all_tools(value: Any, mode: Any) -> None:
    assert choose(value) == ToolChoice(mode)


@pytest.mark.parametrize(("named", "name"), NAMED)
def test_a_named_tool_has_to_be_called(named: dict[str, Any], name: str) -> None:
    assert choose(named) == ToolChoice("required", frozenset({name}), is_named=True)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_named_in_the_same_ways(mode: Any) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [named for named, _ in NAMED]}
    assert choose(choice) == ToolChoice(mode, frozenset(name for _, name in NAMED))


def test_no_allowed_tools_is_a_choice_too() -> None:
    assert choose({"type": "allowed_tools", "tools": []}) == ToolChoice("auto", frozenset())


HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "web_search_preview"},
    {"type": "file_search"},
    {"type": "code_interpreter"},
    {"type": "image_generation"},
    {"type": "programmatic_tool_calling"},
    {"type": "mcp", "server_label": "s"},
    {"type": "mcp", "server_label": "s", "name": "f"},
]


@pytest.mark.parametrize("hosted", HOSTED)
def test_a_hosted_tool_cannot_be_chosen(hosted: dict[str, Any]) -> None:
    assert refusal(hosted) == "tool_choice.type"
    assert refusal({"type": "allowed_tools", "tools": [NAMED[0][0], hosted]}) == "tool_choice.tools[1].type"


@pytest.mark.parametrize(("named", "_name"), NAMED)
def test_a_tool_that_is_not_offered_is_refused(named: dict[str, Any], _name: str) -> None:
    field = "name" if "name" in named else "type"
    assert refusal(named, []) == f"tool_choice.{field}"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("sometimes", "tool_choice"),
        (5, "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": "function", "name": "g"}, "tool_choice.name"),
        ({"type": "function", "name": "c"}, "tool_choice.name"),
        ({"type": "custom", "name": "f"}, "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "custom", "name": ""}, "tool_choice.name"),
        ({"type": "function", "name": 5}, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "never", "tools": []}, "tool_choice.mode"),
        (
            {"type": "allowed_tools", "tools": [NAMED[0][0], {"type": "custom", "name": "g"}]},
            "tool_choice.tools[1].name",
        ),
        ({"type": "allowed_tools", "tools": [{"name": "f"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "tools": [5]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "tool_choice.tools"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused_by_its_path(value: Any, param: str) -> None:
    assert refusal(value) == param


def test_required_needs_a_tool() -> None:
    assert refusal("required", []) == "tool_choice"
