"""mcp_definition.py: what a client may ask of MCP tools, and what is kept of that."""

from typing import Any

import pytest

from engine.errors import RequestError
from engine.hosted.base import Definition
from engine.hosted.mcp_definition import McpDefinition, read_definition, without_secrets

DEFINITION = {"type": "mcp", "server_label": "docs"}


def read(**fields: Any) -> McpDefinition:
    return read_definition(Definition(0, DEFINITION | fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_label": "a b"}, "server_label"),
        ({"server_label": None}, "server_label"),
        ({"headers": ["x"]}, "headers"),
        ({"allowed_tools": 3}, "allowed_tools"),
        ({"require_approval": "sometimes"}, "require_approval"),
    ],
)
def test_wrong_definition_is_refused_at_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert (caught.value.param or "").startswith(param)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, {"a", "b", "c"}),
        (["a"], {"a"}),
        ([], set()),
        ({"tool_names": ["a", "b"]}, {"a", "b"}),
        ({"read_only": True}, {"c"}),
        ({"read_only": True, "tool_names": ["a"]}, set()),
    ],
)
def test_allowed_tools(allowed: Any, expected: set[str]) -> None:
    definition = read(allowed_tools=allowed)
    assert {name for name in "abc" if definition.allows(name, is_read_only=name == "c")} == expected


@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize(
    ("approval", "expected"),
    [
        (None, {True: "abc", False: ""}),
        ("always", {True: "abc", False: "abc"}),
        ("never", {True: "", False: ""}),
        ({"never": {"tool_names": ["a"]}}, {True: "bc", False: ""}),
        ({"always": {"tool_names": ["a"]}}, {True: "abc", False: "a"}),
        ({"never": {"read_only": True}, "always": {"tool_names": ["b", "c"]}}, {True: "ab", False: "b"}),
    ],
)
def test_approval(approval: Any, expected: dict[bool, str], by_default: bool) -> None:
    definition = read(require_approval=approval)
    needed = (
        name for name in "abc"
        if definition.needs_approval(name, by_default=by_default, is_read_only=name == "c")
    )  # fmt: skip
    assert "".join(needed) == expected[by_default]


def test_secrets_are_neither_shown_nor_kept() -> None:
    given = DEFINITION | {
        "server_url": "https://me:pw@mcp.example/x/y?key=s3cret#z",
        "headers": {"X-Key": "s3cret"},
        "authorization": "s3cret",
    }
    assert without_secrets(given) == DEFINITION | {"server_url": "https://mcp.example/x/y"}
    assert "s3cret" not in repr(read_definition(Definition(0, given)))
