"""calls.py: the model's JSON becomes an item that strict clients can read, or an error of the model."""

import json
from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, CallType
from engine.calls import PREFIXES, build_call
from engine.errors import BackendError
from engine.items import ANSWER_TYPES, encode_item


def build(kind: CallType, value: Any, **start: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    call = build_call(CallStart(kind, "f", **start), text, item_id="i", call_id="c")
    decoded: dict[str, Any] = msgspec.json.decode(encode_item(call))
    return decoded


@pytest.mark.parametrize(
    ("kind", "value", "fields"),
    [
        (
            "local_shell_call",
            {"command": ["ls"]},
            {"action": {"type": "exec", "command": ["ls"], "env": {}}},
        ),
        (
            "local_shell_call",
            {"type": "other", "command": ["ls"], "env": {"A": "b"}, "timeout_ms": 5},
            {"action": {"type": "exec", "command": ["ls"], "env": {"A": "b"}, "timeout_ms": 5}},
        ),
        ("shell_call", {"commands": ["ls", "pwd"]}, {"action": {"commands": ["ls", "pwd"]}}),
        ("shell_call", {"commands": []}, {"action": {"commands": []}}),
        (
            "apply_patch_call",
            {"type": "create_file", "path": "a", "diff": "+x"},
            {"operation": {"type": "create_file", "path": "a", "diff": "+x"}},
        ),
        (
            "apply_patch_call",
            {"type": "delete_file", "path": "a"},
            {"operation": {"type": "delete_file", "path": "a"}},
        ),
        ("computer_call", {"type": "screenshot"}, {"action": {"type": "screenshot"}, "pending_safety_checks": []}),
        ("tool_search_call", {"query": "q"}, {"arguments": {"query": "q"}, "execution": "client"}),
        ("tool_search_call", "", {"arguments": {}, "execution": "client"}),
    ],
)
def test_action_becomes_an_item(kind: CallType, value: Any, fields: dict[str, Any]) -> None:
    assert build(kind, value) == {"type": kind, "id": "i", "call_id": "c", "status": "completed"} | fields


@pytest.mark.parametrize(("text", "arguments"), [("", "{}"), ('{"a":1}', '{"a":1}')])
def test_approval_request_keeps_the_arguments_as_text(text: str, arguments: str) -> None:
    assert build("mcp_approval_request", text, server_label="crm") == {
        "type": "mcp_approval_request",
        "id": "i",
        "name": "f",
        "arguments": arguments,
        "server_label": "crm",
    }


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((kind, text) for kind in ("local_shell_call", "shell_call", "computer_call") for text in ("{", "[]", "7")),
        ("tool_search_call", "[]"),
        ("local_shell_call", {}),
        ("local_shell_call", {"command": "ls"}),
        ("local_shell_call", {"command": [1]}),
        ("local_shell_call", {"command": ["ls"], "env": {"A": 1}}),
        ("shell_call", {}),
        ("shell_call", {"commands": "ls"}),
        ("shell_call", {"commands": None}),
        ("shell_call", {"commands": ["ls", 5]}),
        ("apply_patch_call", {}),
        ("apply_patch_call", {"type": "move_file", "path": "a"}),
        ("apply_patch_call", {"type": "create_file", "path": "a"}),
        ("apply_patch_call", {"type": "update_file", "path": 5, "diff": ""}),
        ("apply_patch_call", {"type": "delete_file"}),
        ("computer_call", {}),
        ("computer_call", {"type": 5}),
    ],
)
def test_what_no_item_can_carry_is_an_error_of_the_model(kind: CallType, value: Any) -> None:
    with pytest.raises(BackendError) as caught:
        build(kind, value)
    assert (caught.value.code, caught.value.status) == ("model_error", 500)
    assert kind in caught.value.message


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_kinds_that_stream_are_not_built_here(kind: CallType) -> None:
    with pytest.raises(ValueError, match="streams"):
        build(kind, {})


def test_every_call_kind_has_a_prefix_of_its_own() -> None:
    assert PREFIXES.keys() == ANSWER_TYPES.keys()
    assert len(set(PREFIXES.values())) == len(PREFIXES)
