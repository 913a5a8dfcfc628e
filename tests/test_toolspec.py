"""toolspec.py: which tools a run has, what was skipped, and what is wrong with a definition."""

from typing import Any

import msgspec
import pytest

from engine.errors import RequestError
from engine.toolspec import BUILT_IN_SCHEMAS, SkippedTool, Tool, decode_tools

MISSING = "missing_required_parameter"


def decode(*definitions: Any, refuse_unknown: bool = False) -> tuple[list[Tool], list[SkippedTool]]:
    return decode_tools([msgspec.Raw(msgspec.json.encode(one)) for one in definitions], refuse_unknown=refuse_unknown)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}


@pytest.mark.parametrize(
    ("definition", "tool"),
    [
        ({"type": "function", "name": "f"}, Tool("function", "f", "", {"type": "object", "properties": {}})),
        (
            {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
            Tool("function", "f", "d", SCHEMA, True),
        ),
        (
            {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None},
            Tool("function", "f", "", {"type": "object", "properties": {}}),
        ),
        ({"type": "custom", "name": "c", "description": "d"}, Tool("custom", "c", "d")),
        ({"type": "custom", "name": "c", "format": {"type": "text"}}, Tool("custom", "c")),
        ({"type": "custom", "name": "c", "format": GRAMMAR}, Tool("custom", "c", grammar=GRAMMAR)),
        ({"type": "local_shell"}, Tool("local_shell", "local_shell", "", BUILT_IN_SCHEMAS["local_shell"])),
        ({"type": "shell"}, Tool("shell", "shell", "", BUILT_IN_SCHEMAS["shell"])),
        ({"type": "apply_patch"}, Tool("apply_patch", "apply_patch", "", BUILT_IN_SCHEMAS["apply_patch"])),
        ({"type": "computer"}, Tool("computer", "computer", "", BUILT_IN_SCHEMAS["computer"])),
        ({"type": "computer_use_preview"}, Tool("computer", "computer", "", BUILT_IN_SCHEMAS["computer"])),
        ({"type": "tool_search"}, Tool("tool_search", "tool_search", "", BUILT_IN_SCHEMAS["tool_search"])),
        ({"type": "tool_search", "parameters": SCHEMA}, Tool("tool_search", "tool_search", "", SCHEMA)),
    ],
)
def test_definition_becomes_a_tool(definition: dict[str, Any], tool: Tool) -> None:
    assert decode(definition) == ([tool], [])


def test_namespace_is_flattened_and_remembered() -> None:
    inner = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
    tools, _ = decode({"type": "namespace", "name": "crm", "description": "d", "tools": inner})
    assert [(tool.namespace, tool.name, tool.kind) for tool in tools] == [
        ("crm", "f", "function"),
        ("crm", "c", "custom"),
    ]


@pytest.mark.parametrize("kind", ["web_search", "mcp", "image_generation", "file_search", "code_interpreter", "new"])
def test_kind_that_is_not_supported_is_skipped_visibly_or_refused_by_name(kind: str) -> None:
    # ggml-org/llama.cpp#20156, unslothai/unsloth#5141
    function = {"type": "function", "name": "f"}
    tools, skipped = decode(function, {"type": kind})
    assert [tool.name for tool in tools] == ["f"]
    assert skipped == [SkippedTool(1, kind, "not supported by this server")]
    with pytest.raises(RequestError, match=kind) as caught:
        decode(function, {"type": kind}, refuse_unknown=True)
    assert caught.value.param == "tools[1].type"


def test_tool_search_that_the_server_should_run_is_skipped() -> None:
    _, skipped = decode({"type": "tool_search", "execution": "server"})
    assert [tool.index for tool in skipped] == [0]


@pytest.mark.parametrize(
    ("definition", "param", "code"),
    [
        ({"type": "function"}, "tools[1].name", MISSING),
        ({"type": "function", "name": ""}, "tools[1].name", MISSING),
        ({"type": "custom"}, "tools[1].name", MISSING),
        ({"type": "namespace", "tools": [{"type": "function", "name": "f"}]}, "tools[1].name", MISSING),
        ({"name": "f"}, "tools[1].type", MISSING),
        ({"type": "function", "name": 5}, "tools[1].name", "invalid_type"),
        ({"type": "function", "name": "f", "parameters": []}, "tools[1].parameters", "invalid_type"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[1].tools[0].name", MISSING),
        (
            {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]},
            "tools[1].tools[0].type",
            "invalid_value",
        ),
        (
            {"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m", "tools": []}]},
            "tools[1].tools[0].type",
            "invalid_value",
        ),
        ({"type": "namespace", "name": "n", "tools": [{"type": "shell"}]}, "tools[1].tools[0].type", "invalid_value"),
        (7, "tools[1]", "invalid_type"),
        ({"type": "function", "name": "twice"}, "tools", "invalid_value"),
    ],
)
def test_malformed_definition_names_its_field(definition: Any, param: str, code: str) -> None:  # P112
    with pytest.raises(RequestError) as caught:
        decode({"type": "function", "name": "twice"}, definition)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_one_name_may_live_in_two_namespaces() -> None:
    functions = [{"type": "function", "name": "f"}]
    tools, _ = decode(
        *functions,
        {"type": "namespace", "name": "a", "tools": functions},
        {"type": "namespace", "name": "b", "tools": functions},
    )
    assert [tool.namespace for tool in tools] == [None, "a", "b"]


@pytest.mark.parametrize(
    ("format_", "param"),
    [
        ({"type": 5}, "type"),
        ({"type": "ebnf"}, "type"),
        ({"type": "grammar"}, "syntax"),
        ({"type": "grammar", "syntax": ["lark"], "definition": "a"}, "syntax"),
        ({"type": "grammar", "syntax": "lark"}, "definition"),
        ({"type": "grammar", "syntax": "regex", "definition": 5}, "definition"),
    ],
)
def test_format_of_a_custom_tool_is_checked_whatever_the_backend(format_: dict[str, Any], param: str) -> None:
    tool = {"type": "custom", "name": "c", "format": format_}
    with pytest.raises(RequestError) as caught:
        decode_tools([msgspec.Raw(msgspec.json.encode(tool))])
    assert caught.value.param == f"tools[0].format.{param}"
