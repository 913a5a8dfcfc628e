"""`tool_choice`: which of its tools the model may call, and which it must."""

from typing import Final, Literal

import msgspec

from engine.backends.base import ToolChoice
from engine.errors import RequestError
from engine.json_input import invalid_json
from engine.toolspec import Tool, kind_of


class _Entry(msgspec.Struct, frozen=True):
    """One tool as a choice names it: by type and name, or by its type alone where there can be only one.

    A hosted type may stand for several tools, of an MCP server that `server_label` names.
    """

    type: str
    name: str | None = None
    server_label: str | None = None


class _Choice(_Entry, frozen=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[_Entry] = []


_CHOICE: Final = msgspec.json.Decoder(Literal["none", "auto", "required"] | _Choice | None)


def decode_tool_choice(raw: msgspec.Raw, tools: list[Tool]) -> ToolChoice:
    """The step's tool choice; absent and null mean auto. Raises RequestError naming `tool_choice…`."""
    try:
        choice = _CHOICE.decode(raw)
    except msgspec.DecodeError as error:
        raise invalid_json(error).at("tool_choice") from error
    if not isinstance(choice, _Choice):
        if choice == "required" and not tools:
            raise RequestError("'required' needs at least one tool.", param="tool_choice")
        return ToolChoice(choice or "auto")
    if choice.type == "allowed_tools":
        return _allowed(choice, tools)
    return ToolChoice("required", _offered(choice, tools, "tool_choice"), is_named=True)


def _allowed(choice: _Choice, tools: list[Tool]) -> ToolChoice:
    offered = (_offered(entry, tools, f"tool_choice.tools[{i}]") for i, entry in enumerate(choice.tools))
    names = frozenset[str]().union(*offered)
    if choice.mode == "required" and not names:
        raise RequestError("'required' needs at least one tool.", param="tool_choice.tools")
    return ToolChoice(choice.mode, names)


def _offered(entry: _Entry, tools: list[Tool], param: str) -> frozenset[str]:
    """The names of the offered tools that an entry means. Raises RequestError when there is none."""
    kind = "computer" if entry.type == "computer_use" else kind_of(entry.type)  # a name that only choices know
    if kind is None:
        return _hosted(entry, tools, param)
    has_own_name = kind in ("function", "custom")
    if has_own_name and not entry.name:
        raise RequestError(
            "Missing required parameter 'name'.", param=f"{param}.name", code="missing_required_parameter"
        )
    for tool in tools:
        if tool.kind == kind and not tool.hosted and (not has_own_name or tool.name == entry.name):
            return frozenset({tool.name})
    said, field = (entry.name, "name") if has_own_name else (entry.type, "type")
    raise RequestError(f"Tool '{said}' is not among the tools of this response.", param=f"{param}.{field}")


def _hosted(entry: _Entry, tools: list[Tool], param: str) -> frozenset[str]:
    """The labels of the hosted tools that an entry means."""
    item_type = f"{entry.type.removesuffix('_preview')}_call"
    labels = frozenset(
        f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name
        for tool in tools
        if tool.hosted == item_type
        and entry.server_label in (None, tool.namespace)
        and (entry.type != "mcp" or entry.name in (None, tool.name))
    )
    if not labels:
        raise RequestError(f"Tools of type '{entry.type}' cannot be chosen in this response.", param=f"{param}.type")
    return labels
