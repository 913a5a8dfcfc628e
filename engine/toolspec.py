"""Tool definitions as the engine uses them: the kinds a client may offer, decoded and flattened.

Every client tool becomes a named thing with a JSON schema for its arguments (or free text, for custom tools), which is
what a model is shown and what constrained decoding holds it to. Kinds that this server does not know are skipped and
reported, since clients such as Codex always offer some (`web_search`), or refused by name when the setting says so.
"""

import sys
from typing import Any, Final, Literal

import msgspec

from engine.errors import RequestError
from engine.json_input import invalid_json

ToolKind = Literal["function", "custom", "local_shell", "shell", "apply_patch", "computer", "tool_search"]


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call. `parameters` is the JSON schema of its arguments; None: free text (custom).

    `grammar` holds a custom tool's `format` of type grammar ({"syntax": "lark" | "regex", "definition": ...}).
    hosted: the type of the items that its calls become, of one that the server runs itself; None for a client's.
    item_fields: what those items show besides the call.
    """

    kind: ToolKind
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False
    namespace: str | None = None
    grammar: dict[str, Any] | None = None
    hosted: str | None = None
    needs_approval: bool = False
    item_fields: dict[str, Any] = {}


class SkippedTool(msgspec.Struct, frozen=True):
    """A tool that was offered and not used, by its place in `tools`."""

    index: int
    type: str
    reason: str


class _Definition(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list[msgspec.Raw] | None = None
    execution: str | None = None


_DEFINITION: Final = msgspec.json.Decoder(_Definition)


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_STRINGS: Final = {"type": "array", "items": {"type": "string"}}

# What a model has to write to call a tool whose call item has an action instead of arguments.
BUILT_IN_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "local_shell": _object(
        {"command": _STRINGS, "working_directory": {"type": "string"}, "timeout_ms": {"type": "integer"}}, "command"
    ),
    "shell": _object({"commands": _STRINGS, "timeout_ms": {"type": "integer"}}, "commands"),
    "apply_patch": _object(
        {
            "type": {"enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
        "type",
        "path",
    ),
    "computer": _object({"type": {"type": "string"}}, "type") | {"additionalProperties": True},
    "tool_search": _object({"query": {"type": "string"}}, "query"),
}
_BUILT_IN_KINDS: Final[dict[str, ToolKind]] = {
    "local_shell": "local_shell",
    "shell": "shell",
    "apply_patch": "apply_patch",
    "computer": "computer",
    "computer_use_preview": "computer",
    "tool_search": "tool_search",
}
_INVALID_PARAMETERS: Final = "invalid_function_parameters"
_KINDS: Final[dict[str, ToolKind]] = {"function": "function", "custom": "custom", **_BUILT_IN_KINDS}


def kind_of(type_: str) -> ToolKind | None:
    """The kind of client tool that a wire `type` means; None for one that is not ours to run."""
    return _KINDS.get(type_)


def decode_tools(
    raws: list[msgspec.Raw],
    *,
    refuse_unknown: bool = False,
    hosted: frozenset[str] = frozenset(),
    max_schema_bytes: int = sys.maxsize,
) -> tuple[list[Tool], list[SkippedTool]]:
    """The client tools of a request and what was skipped. Raises RequestError naming `tools[i]…`.

    hosted: types that the server runs itself, which are nobody's business here. max_schema_bytes: of a definition.
    """
    tools: list[Tool] = []
    skipped: list[SkippedTool] = []
    for index, raw in enumerate(raws):
        try:
            found = _decode_tool(raw, max_schema_bytes)
        except RequestError as error:
            raise error.at(f"tools[{index}]") from error
        if isinstance(found, str):
            if found in hosted:
                continue
            if refuse_unknown:
                raise RequestError(f"Tool type '{found}' is not supported.", param=f"tools[{index}].type")
            skipped.append(SkippedTool(index, found, "not supported by this server"))
        else:
            tools += found
    refuse_duplicates(tools)
    return tools, skipped


def _decode_tool(raw: msgspec.Raw, max_schema_bytes: int, namespace: str | None = None) -> list[Tool] | str:
    """The tools one definition stands for, or the name of a kind that is not ours to run."""
    try:
        definition = _DEFINITION.decode(raw)
    except msgspec.DecodeError as error:
        raise invalid_json(error) from error
    if definition.type != "namespace" and len(raw) > max_schema_bytes:
        raise RequestError(f"The definition is longer than {max_schema_bytes} bytes.", code=_INVALID_PARAMETERS)
    if definition.type == "tool_search" and definition.execution == "server":
        return "tool_search (execution: server)"
    if kind := _BUILT_IN_KINDS.get(definition.type):
        schema = definition.parameters or BUILT_IN_SCHEMAS[kind]
        return [Tool(kind, kind, definition.description or "", schema, namespace=namespace)]
    match definition.type:
        case "function":
            return [_function(definition, namespace)]
        case "custom":
            grammar = _grammar(definition.format or {})
            return [
                Tool("custom", _name(definition), definition.description or "", namespace=namespace, grammar=grammar)
            ]
        case "namespace":
            return _namespace(definition, max_schema_bytes)
        case other:
            return other


def _function(definition: _Definition, namespace: str | None) -> Tool:
    schema = definition.parameters or {"type": "object", "properties": {}}
    return Tool("function", _name(definition), definition.description or "", schema, bool(definition.strict), namespace)


def _grammar(format_: dict[str, Any]) -> dict[str, Any] | None:
    """A custom tool's grammar, if its format is one."""
    match format_.get("type", "text"):
        case "text":
            return None
        case "grammar":
            if format_.get("syntax") not in ("lark", "regex"):
                raise RequestError("A grammar is of syntax lark or regex.", param="format.syntax")
            if not isinstance(format_.get("definition"), str):
                raise RequestError("A grammar needs a definition.", param="format.definition")
            return format_
        case _:
            raise RequestError("A format is of type text or grammar.", param="format.type")


def _namespace(definition: _Definition, max_schema_bytes: int) -> list[Tool]:
    name, tools = _name(definition), []
    for index, raw in enumerate(definition.tools or []):
        try:
            tools.append(_decode_member(raw, max_schema_bytes, name))
        except RequestError as error:
            raise error.at(f"tools[{index}]") from error
    return tools


def _decode_member(raw: msgspec.Raw, max_schema_bytes: int, namespace: str) -> Tool:
    """A tool of a namespace: a function or a custom tool, as the API has it."""
    found = _decode_tool(raw, max_schema_bytes, namespace)
    if isinstance(found, str) or len(found) != 1 or found[0].kind not in ("function", "custom"):
        raise RequestError("Only function and custom tools can be part of a namespace.", param="type")
    return found[0]


def _name(definition: _Definition) -> str:
    if not definition.name:
        raise RequestError("Missing required parameter 'name'.", param="name", code="missing_required_parameter")
    return definition.name


def refuse_duplicates(tools: list[Tool]) -> None:
    """Raises RequestError when the model could not tell two tools apart."""
    seen: set[tuple[str | None, str]] = set()
    for tool in tools:
        if (tool.namespace, tool.name) in seen:
            raise RequestError(f"Tool name '{tool.name}' is used twice.", param="tools")
        seen.add((tool.namespace, tool.name))
