"""A run's tools as a model sees them: labels, JSON documents, and the call kinds that labels stand for."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from engine.backends.base import CallType, ToolChoice
from engine.backends.template import to_json
from engine.toolspec import Tool, ToolKind

CALL_TYPES: Final[dict[ToolKind, CallType]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "local_shell": "local_shell_call",
    "shell": "shell_call",
    "apply_patch": "apply_patch_call",
    "computer": "computer_call",
    "tool_search": "tool_search_call",
}

_FREE_INPUT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def label_of(name: str, namespace: str | None) -> str:
    """The one name by which the model calls a tool."""
    return f"{namespace}.{name}" if namespace else name


class ToolSet(msgspec.Struct, frozen=True):
    """Tools by label, in the order given."""

    by_label: dict[str, Tool]

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "ToolSet":
        """The set of these tools, whose labels are distinct (`decode_tools` has seen to that)."""
        return cls({label_of(tool.name, tool.namespace): tool for tool in tools})

    def documents(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Each tool in the form chat templates expect, as a value and as JSON text."""
        for label, tool in self.by_label.items():
            function = {"name": label, "description": tool.description, "parameters": parameters_of(tool)}
            document = {"type": "function", "function": function}
            yield document, to_json(document)

    def callable_under(self, choice: ToolChoice) -> frozenset[str]:
        """Labels that a step with this tool_choice may call. `allowed` names tools by name or by label."""
        if choice.mode == "none":
            return frozenset()
        return frozenset(
            label
            for label, tool in self.by_label.items()
            if choice.allowed is None or label in choice.allowed or tool.name in choice.allowed
        )


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of the arguments as the model is shown it: an object, also for a custom tool's free input."""
    if tool.kind == "custom":
        return _FREE_INPUT
    schema = tool.parameters or {}
    return schema if schema.keys() & _SHAPES else {"type": "object"} | schema


def held_parameters_of(tool: Tool) -> dict[str, Any]:
    """The same, closed: where a schema leaves it open, a constrained model may not invent further properties."""
    schema = parameters_of(tool)
    is_open = "properties" in schema and not schema.keys() & _OPENINGS
    return schema | {"additionalProperties": False} if is_open else schema


def call_schema(label: str, tool: Tool, key: str) -> dict[str, Any]:
    """The JSON schema of a call that is one object, whose arguments stand under `key`."""
    return {
        "type": "object",
        "properties": {"name": {"const": label}, key: held_parameters_of(tool)},
        "required": ["name", key],
        "additionalProperties": False,
    }


_SHAPES: Final = {"type", "$ref", "anyOf", "oneOf", "allOf"}
# With these the properties named at the top are not all there are.
_OPENINGS: Final = {"additionalProperties", "patternProperties", "unevaluatedProperties", *_SHAPES} - {"type"}
