"""Scripted tool calls against the tools that a client really offers: which tool, which arguments."""

import json
from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from typing import Any, Final

import msgspec

from engine.backends.base import CallStart, CallType, ToolChoice
from engine.backends.pieces import fill
from engine.backends.scenario_values import ScriptedCall
from engine.errors import BackendError
from engine.toolspec import Tool

MAX_DEPTH: Final = 16  # a schema may refer to itself

_TO_JSON: Final = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make such an encoder each time
_CALL_TYPES: Final[dict[str, CallType]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "local_shell": "local_shell_call",
    "shell": "shell_call",
    "apply_patch": "apply_patch_call",
    "computer": "computer_call",
    "tool_search": "tool_search_call",
    "mcp_approval": "mcp_approval_request",
}


class ReadyCall(msgspec.Struct, frozen=True):
    """A call that can be played: how it begins, and its whole arguments or input."""

    start: CallStart
    text: str


def ready_call(
    call: ScriptedCall, tools: ListOf[Tool], choice: ToolChoice, values: Mapping[str, str]
) -> ReadyCall | None:
    """The call with its tool found and its placeholders filled, or None where `choice` forbids it.

    Raises BackendError when the client offers no such tool: the scenario does not fit the client.
    """
    if choice.mode == "none":
        return None
    if call.kind == "mcp_approval":
        start = CallStart("mcp_approval_request", call.name or "", call.namespace, call.server_label)
        return ReadyCall(start, _text(call.arguments or {}, values))
    usable = [tool for tool in tools if _is_allowed(tool, choice)]
    tool = _find(call, usable)
    if tool is None:
        if _find(call, tools):
            return None
        raise _no_tool(call, tools)
    arguments = _made_up(tool) if call.arguments is None else call.arguments
    return ReadyCall(CallStart(_CALL_TYPES[tool.kind], tool.name, tool.namespace), _text(arguments, values))


def _is_allowed(tool: Tool, choice: ToolChoice) -> bool:
    # By name or by label, as the prompt's ToolSet has it.
    return choice.allowed is None or not choice.allowed.isdisjoint((tool.name, f"{tool.namespace}.{tool.name}"))


def _find(call: ScriptedCall, tools: ListOf[Tool]) -> Tool | None:
    for tool in tools:
        is_kind = call.kind is None or tool.kind == call.kind
        is_name = call.name is None or tool.name == call.name
        if is_kind and is_name and call.namespace in (None, tool.namespace):
            return tool
    return None


def _no_tool(call: ScriptedCall, tools: ListOf[Tool]) -> BackendError:
    kind = f"{call.kind} tool" if call.kind else "tool"
    wanted = f"the {kind} '{call.name}'" if call.name else f"the first {kind}"
    offered = ", ".join(f"{tool.name} ({tool.kind})" for tool in tools) or "no tools"
    return BackendError(f"The scenario calls {wanted} at {call.where}, but the client offers {offered}.")


def _text(arguments: Any, values: Mapping[str, str]) -> str:
    if isinstance(arguments, str):
        return fill(arguments, values)
    return _TO_JSON(_filled(arguments, values))


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    match value:
        case str():
            return fill(value, values)
        case dict():
            return {key: _filled(member, values) for key, member in value.items()}
        case list():
            return [_filled(member, values) for member in value]
        case _:
            return value


# --- made up arguments -------------------------------------------------------------------------------------------


def _made_up(tool: Tool) -> Any:
    if tool.kind == "custom":
        return "scripted input"
    schema = tool.parameters or {}
    value = example(schema, schema)
    return value if isinstance(value, dict) else {}


def example(schema: Any, root: Mapping[str, Any], name: str = "text", depth: int = 0) -> Any:
    """A value that a JSON schema very likely takes: required members only, lowest numbers, the property's name as text.

    Not a solver: `pattern`, `format`, `not` and the like are not looked at.
    """
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if "$ref" in schema:
        return example(_referred(schema["$ref"], root), root, name, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], root, name, depth + 1)
    return _of_type(schema, root, name, depth)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in str(reference).removeprefix("#").strip("/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _of_type(schema: dict[str, Any], root: Mapping[str, Any], name: str, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            members = schema.get("properties", {})
            return {key: example(members.get(key, {}), root, key, depth + 1) for key in schema.get("required", [])}
        case "array":
            return [example(schema.get("items", {}), root, name, depth + 1)] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return name.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
