"""Events about calls that the server runs itself, named as the Responses API does.

All have an item's place (`item_id`, `output_index`); which come when, the kind's shape says (hosted/shapes.py).
"""

from engine.item_events import NumberedEvent


class HostedEvent(NumberedEvent, frozen=True):
    """Base of them all."""

    item_id: str
    output_index: int


class McpListToolsInProgress(HostedEvent, tag="response.mcp_list_tools.in_progress", frozen=True):
    pass


class McpListToolsCompleted(HostedEvent, tag="response.mcp_list_tools.completed", frozen=True):
    pass


class McpListToolsFailed(HostedEvent, tag="response.mcp_list_tools.failed", frozen=True):
    pass


class McpCallInProgress(HostedEvent, tag="response.mcp_call.in_progress", frozen=True):
    pass


class McpCallArgumentsDelta(HostedEvent, tag="response.mcp_call_arguments.delta", frozen=True):
    delta: str


class McpCallArgumentsDone(HostedEvent, tag="response.mcp_call_arguments.done", frozen=True):
    arguments: str


class McpCallCompleted(HostedEvent, tag="response.mcp_call.completed", frozen=True):
    pass


class McpCallFailed(HostedEvent, tag="response.mcp_call.failed", frozen=True):
    pass


class WebSearchInProgress(HostedEvent, tag="response.web_search_call.in_progress", frozen=True):
    pass


class WebSearchSearching(HostedEvent, tag="response.web_search_call.searching", frozen=True):
    pass


class WebSearchCompleted(HostedEvent, tag="response.web_search_call.completed", frozen=True):
    pass


class FileSearchInProgress(HostedEvent, tag="response.file_search_call.in_progress", frozen=True):
    pass


class FileSearchSearching(HostedEvent, tag="response.file_search_call.searching", frozen=True):
    pass


class FileSearchCompleted(HostedEvent, tag="response.file_search_call.completed", frozen=True):
    pass


class CodeInterpreterInProgress(HostedEvent, tag="response.code_interpreter_call.in_progress", frozen=True):
    pass


class CodeInterpreterCodeDelta(HostedEvent, tag="response.code_interpreter_call_code.delta", frozen=True):
    delta: str


class CodeInterpreterCodeDone(HostedEvent, tag="response.code_interpreter_call_code.done", frozen=True):
    code: str


class CodeInterpreterInterpreting(HostedEvent, tag="response.code_interpreter_call.interpreting", frozen=True):
    pass


class CodeInterpreterCompleted(HostedEvent, tag="response.code_interpreter_call.completed", frozen=True):
    pass


AnyHostedEvent = (
    McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | WebSearchInProgress
    | WebSearchSearching
    | WebSearchCompleted
    | FileSearchInProgress
    | FileSearchSearching
    | FileSearchCompleted
    | CodeInterpreterInProgress
    | CodeInterpreterCodeDelta
    | CodeInterpreterCodeDone
    | CodeInterpreterInterpreting
    | CodeInterpreterCompleted
)
