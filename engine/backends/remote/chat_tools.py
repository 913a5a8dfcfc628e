"""A run's tools as a chat completion has them: functions with plain names, and what a call of one stands for.

Here names are letters, digits, `_` and `-`, 64 of them at most. A tool's label (`namespace.name`) is made such a name
once, the same in every turn; names that meet are numbered.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from engine.backends.base import CallStart, ToolChoice
from engine.backends.toolset import CALL_TYPES, ToolSet, parameters_of
from engine.toolspec import Tool

_MAX_NAME: Final = 64
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]+")


class ChatTools:
    """Tools by the names that they have here."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._toolset = ToolSet.of(tools)
        self._tool_of: dict[str, Tool] = {}
        self._name_of: dict[str, str] = {}  # by label
        for label, tool in self._toolset.by_label.items():
            name = self._free_name(label)
            self._tool_of[name], self._name_of[label] = tool, name
        self.num_bytes = len(msgspec.json.encode(self._definitions(self._tool_of)))

    def _free_name(self, label: str) -> str:
        name, number = plain_name(label), 2
        while name in self._tool_of:
            suffix = f"_{number}"
            name, number = plain_name(label)[: _MAX_NAME - len(suffix)] + suffix, number + 1
        return name

    def name_of(self, label: str) -> str:
        """The name of a tool here, also of one that is not offered (any more)."""
        return self._name_of.get(label) or plain_name(label)

    def start_of(self, name: str) -> CallStart:
        """The beginning of a call of this name; a name that was not offered is the client's to refuse."""
        tool = self._tool_of.get(name)
        if tool is None:
            return CallStart("function_call", name)
        return CallStart(CALL_TYPES[tool.kind], tool.name, tool.namespace)

    def is_free_text(self, name: str) -> bool:
        """Whether a call's input is one text, which the model writes as `{"input": …}`."""
        tool = self._tool_of.get(name)
        return tool is not None and tool.kind == "custom"

    def fields(self, choice: ToolChoice, *, names_tool: bool = True) -> dict[str, Any]:
        """The request's fields about tools under this choice. names_tool: see `chat_request.ChatDialect`.

        All tools are offered even where none may be called, so that the prompt stays as it was; but where some may be,
        only those, since there is no other way to say so.
        """
        if not self._tool_of:
            return {}
        labels = self._toolset.callable_under(choice)
        if not labels:
            return {"tools": self._definitions(self._tool_of), "tool_choice": "none"}
        names = [name for label, name in self._name_of.items() if label in labels]
        if choice.mode == "required" and len(names) == 1 and names_tool:
            only = {"type": "function", "function": {"name": names[0]}}
            return {"tools": self._definitions(self._tool_of), "tool_choice": only}
        return {"tools": self._definitions(names), "tool_choice": choice.mode}

    def _definitions(self, names: Any) -> list[dict[str, Any]]:
        return [self._definition(name, self._tool_of[name]) for name in names]

    def _definition(self, name: str, tool: Tool) -> dict[str, Any]:
        function: dict[str, Any] = {"name": name, "description": tool.description, "parameters": parameters_of(tool)}
        if tool.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


def plain_name(label: str) -> str:
    """The label in the letters that a name may have."""
    return _FOREIGN.sub("_", label)[:_MAX_NAME] or "_"
