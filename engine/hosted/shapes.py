"""How hosted calls look: for each kind, its item and the events between `output_item.added` and `output_item.done`.

    added(call), opening()          when the model begins the call: the name is known, the arguments are not
    piece(text)                     as the arguments come
    called(call)                    when they are whole and the tool is about to run
    ended(result), item(...)        when it has run

A shape has no state; its name (the item's `type`) is what a Tool's `hosted` says and what the store keeps.
"""

from functools import partial
from typing import Any, Final, Protocol

from engine.hosted.base import HostedCall, HostedResult, Sketch
from engine.hosted.builtin_shapes import CodeInterpreterShape, FileSearchShape, WebSearchShape
from engine.hosted_events import (
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
)


class Shape(Protocol):
    """See the module. Items are without `id`, `type` and `status`, which all have."""

    @property
    def prefix(self) -> str:
        """What the items' ids begin with."""

    def opening(self) -> list[Sketch]:
        """The events behind `output_item.added`."""

    def piece(self, text: str) -> list[Sketch]:
        """The events of a piece of the arguments."""

    def called(self, call: HostedCall) -> list[Sketch]:
        """The events of a call that is whole."""

    def ended(self, result: HostedResult) -> list[Sketch]:
        """The events before `output_item.done`."""

    def item(self, call: HostedCall, result: HostedResult | None) -> dict[str, Any]:
        """The item's fields; result: None for one that has begun, or was cut."""


class McpCallShape:
    """`mcp_call`: of remote MCP servers and of the server's own functions."""

    prefix = "mcp"

    def opening(self) -> list[Sketch]:
        return [partial(McpCallInProgress)]

    def piece(self, text: str) -> list[Sketch]:
        return [partial(McpCallArgumentsDelta, delta=text)]

    def called(self, call: HostedCall) -> list[Sketch]:
        return [partial(McpCallArgumentsDone, arguments=call.arguments)]

    def ended(self, result: HostedResult) -> list[Sketch]:
        return [partial(McpCallCompleted if result.error is None else McpCallFailed)]

    def item(self, call: HostedCall, result: HostedResult | None) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "server_label": call.tool.namespace or "",
            "name": call.tool.name,
            "arguments": call.arguments,
        }
        if call.approval_request_id is not None:
            fields["approval_request_id"] = call.approval_request_id
        if result is not None:
            fields |= {"output": result.output} if result.error is None else {"error": _execution_error(result.error)}
        return fields


def _execution_error(why: str) -> dict[str, Any]:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": why}]}


SHAPES: Final[dict[str, Shape]] = {
    "mcp_call": McpCallShape(),
    "file_search_call": FileSearchShape(),
    "web_search_call": WebSearchShape(),
    "code_interpreter_call": CodeInterpreterShape(),
}


def item_of(call: HostedCall, status: str, result: HostedResult | None = None) -> dict[str, Any]:
    """The whole item as it is now."""
    kind = call.tool.hosted or ""
    more = result.fields if result is not None else {}
    head = {"type": kind, "id": call.id, "status": status}
    return head | call.tool.item_fields | SHAPES[kind].item(call, result) | more
