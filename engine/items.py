"""The items of a run: what the client gives and what the model makes.

One frozen struct per item kind, decoded by its `type` tag. Fields a kind does not need are ignored, fields it needs
and lacks are an error that names them. `null` counts as absent for optional fields, and an absent field is never
written, because strict clients accept a value or nothing but no null.

Source: the Responses API's input and output item unions (openai-python's `ResponseInputItem`, `ResponseOutputItem`).
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.content import ComputerScreenshot, Content, ReasoningText, SummaryText, Value
from engine.errors import RequestError
from engine.json_input import invalid_json

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


# --- messages and reasoning --------------------------------------------------------------------------------------


class Message(Value, tag="message", frozen=True):
    """A message; `content` of the model's own messages is a list of output parts.

    phase: `commentary` or `final_answer`, of the model's own. agent: who of several speaks (OpenAI's multi-agent beta).
    """

    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    phase: str | UnsetType | None = UNSET
    agent: dict[str, Any] | UnsetType | None = UNSET


class Reasoning(Value, tag="reasoning", frozen=True):
    summary: list[SummaryText] = msgspec.field(default_factory=list)
    content: list[ReasoningText] | UnsetType | None = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


# --- calls the client answers ------------------------------------------------------------------------------------


class FunctionCall(Value, tag="function_call", frozen=True):
    call_id: str
    name: str
    arguments: str
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    namespace: str | UnsetType | None = UNSET


class CustomToolCall(Value, tag="custom_tool_call", frozen=True):
    call_id: str
    name: str
    input: str
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    namespace: str | UnsetType | None = UNSET


class LocalShellCall(Value, tag="local_shell_call", frozen=True):
    action: dict[str, Any]
    call_id: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ShellCall(Value, tag="shell_call", frozen=True):
    call_id: str
    action: dict[str, Any]
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ApplyPatchCall(Value, tag="apply_patch_call", frozen=True):
    call_id: str
    operation: dict[str, Any]
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ComputerCall(Value, tag="computer_call", frozen=True):
    call_id: str
    action: dict[str, Any] | UnsetType | None = UNSET
    actions: list[Any] | UnsetType | None = UNSET
    pending_safety_checks: list[Any] = msgspec.field(default_factory=list)
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ToolSearchCall(Value, tag="tool_search_call", frozen=True):
    arguments: Any
    call_id: str | UnsetType | None = UNSET
    execution: Literal["server", "client"] = "client"
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class McpApprovalRequest(Value, tag="mcp_approval_request", frozen=True):
    id: str
    name: str
    arguments: str
    server_label: str


Call = (
    FunctionCall
    | CustomToolCall
    | LocalShellCall
    | ShellCall
    | ApplyPatchCall
    | ComputerCall
    | ToolSearchCall
    | McpApprovalRequest
)


# --- the client's answers ----------------------------------------------------------------------------------------


class FunctionCallOutput(Value, tag="function_call_output", frozen=True):
    """`status: "in_progress"` with an `offset` (characters) marks a part of a growing output (streamed append)."""

    call_id: str
    output: Content
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    offset: Offset | UnsetType | None = UNSET


class CustomToolCallOutput(Value, tag="custom_tool_call_output", frozen=True):
    call_id: str
    output: Content
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    offset: Offset | UnsetType | None = UNSET


class LocalShellCallOutput(Value, tag="local_shell_call_output", frozen=True):
    """OpenAI matches this one by `id`; some clients send `call_id`. Either names the call."""

    output: str
    id: str | UnsetType | None = UNSET
    call_id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ShellCallOutput(Value, tag="shell_call_output", frozen=True):
    call_id: str
    output: list[Any]
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    max_output_length: int | UnsetType | None = UNSET


class ApplyPatchCallOutput(Value, tag="apply_patch_call_output", frozen=True):
    call_id: str
    status: Literal["completed", "failed"]
    output: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET


class ComputerCallOutput(Value, tag="computer_call_output", frozen=True):
    call_id: str
    output: ComputerScreenshot
    acknowledged_safety_checks: list[Any] | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    status: Literal["in_progress", "completed", "incomplete", "failed"] | UnsetType | None = UNSET


class ToolSearchOutput(Value, tag="tool_search_output", frozen=True):
    tools: list[Any]
    call_id: str | UnsetType | None = UNSET
    execution: Literal["server", "client"] = "client"
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class McpApprovalResponse(Value, tag="mcp_approval_response", frozen=True):
    approval_request_id: str
    approve: bool
    id: str | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET


Answer = (
    FunctionCallOutput
    | CustomToolCallOutput
    | LocalShellCallOutput
    | ShellCallOutput
    | ApplyPatchCallOutput
    | ComputerCallOutput
    | ToolSearchOutput
    | McpApprovalResponse
)


# --- what stands for other items ---------------------------------------------------------------------------------


class Compaction(Value, tag="compaction", frozen=True):
    """What is left of a context that was too long: a sealed text that only the server which made it can read."""

    encrypted_content: str
    id: str | UnsetType | None = UNSET


class CompactionTrigger(Value, tag="compaction_trigger", frozen=True):
    """The client wants the context compacted now."""

    id: str | UnsetType | None = UNSET


class ItemReference(Value, tag="item_reference", frozen=True):
    """An item that the server has, by its id."""

    id: str


# --- everything else a history may hold --------------------------------------------------------------------------


class Hosted(msgspec.Struct, frozen=True):
    """A hosted tool's item or another kind the engine only carries along: `data` is the whole item, type included."""

    type: str
    data: dict[str, Any]


Item = Message | Reasoning | Call | Answer | Compaction | CompactionTrigger | ItemReference | Hosted

HOSTED_TYPES: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "additional_tools",
        "program",
        "program_output",
    }
)
# Known, and refused: what a run is asked to do cannot change in the middle of its input.
_REFUSED_TYPES: Final = ("configuration_update",)

_KINDS: Final[dict[str, Any]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        Message, Reasoning,
        FunctionCall, CustomToolCall, LocalShellCall, ShellCall, ApplyPatchCall, ComputerCall, ToolSearchCall,
        McpApprovalRequest,
        FunctionCallOutput, CustomToolCallOutput, LocalShellCallOutput, ShellCallOutput, ApplyPatchCallOutput,
        ComputerCallOutput, ToolSearchOutput, McpApprovalResponse,
        Compaction, CompactionTrigger, ItemReference,
    )
}  # fmt: skip
_DECODERS: Final = {tag: msgspec.json.Decoder(kind) for tag, kind in _KINDS.items()}
_DATA: Final = msgspec.json.Decoder(dict[str, Any])


class _Head(msgspec.Struct):
    type: str = ""
    role: Any = None
    id: Any = None

    @property
    def kind(self) -> str:
        """The item's type. The SDKs' easy forms have none: a message has a role, a reference only an id."""
        return self.type or ("item_reference" if self.id is not None and self.role is None else "message")


_HEAD: Final = msgspec.json.Decoder(_Head)


def decode_item(raw: bytes | msgspec.Raw) -> Item:
    """One item from its JSON. Raises RequestError whose `param` is the path inside the item."""
    try:
        tag = _HEAD.decode(raw).kind
        if decoder := _DECODERS.get(tag):
            item: Item = decoder.decode(raw)
            return item
        if tag in HOSTED_TYPES:
            return Hosted(tag, _DATA.decode(raw))
    except msgspec.DecodeError as error:
        raise invalid_json(error) from error
    if tag in _REFUSED_TYPES:
        raise RequestError(f"Items of type '{tag}' are not supported.", param="type", code="unsupported_item")
    raise RequestError(f"Unknown item type '{tag}'.", param="type", code="invalid_value")


def decode_items(raws: list[msgspec.Raw], *, param: str = "input") -> list[Item]:
    """All items of an `input` array. Raises RequestError with a path such as `input[3].call_id`."""
    items = []
    for index, raw in enumerate(raws):
        try:
            items.append(decode_item(raw))
        except RequestError as error:
            raise error.at(f"{param}[{index}]") from error
    return items


# --- questions about items ---------------------------------------------------------------------------------------

ANSWER_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "function_call": ("function_call_output",),
    "custom_tool_call": ("custom_tool_call_output",),
    # Codex answers its shell calls with plain function outputs.
    "local_shell_call": ("local_shell_call_output", "function_call_output"),
    "shell_call": ("shell_call_output", "function_call_output"),
    "apply_patch_call": ("apply_patch_call_output", "function_call_output"),
    "computer_call": ("computer_call_output",),
    "tool_search_call": ("tool_search_output",),
    "mcp_approval_request": ("mcp_approval_response",),
}


def type_of(item: Item) -> str:
    """The item's wire `type`."""
    return item.type if isinstance(item, Hosted) else str(item.__struct_config__.tag)


def call_key(call: Call) -> str:
    """The id by which an answer names this call: `call_id`, or the request's own id for an MCP approval."""
    key = call.id if isinstance(call, McpApprovalRequest) else call.call_id
    return key or ""


def answer_key(answer: Answer) -> str:
    """The id of the call that this answer belongs to; empty when the answer names none."""
    match answer:
        case McpApprovalResponse():
            return answer.approval_request_id
        case LocalShellCallOutput():
            return answer.call_id or answer.id or ""
        case _:
            return answer.call_id or ""


def item_id(item: Item) -> str | None:
    """The item's own id, if it has one."""
    own = item.data.get("id") if isinstance(item, Hosted) else item.id
    return own if own and isinstance(own, str) else None


WireItem = Item | dict[str, Any]


def wire_form(item: Item) -> WireItem:
    """What encodes to the item's JSON, within whatever holds it."""
    return item.data if isinstance(item, Hosted) else item


_ENCODER: Final = msgspec.json.Encoder()


def encode_item(item: Item) -> bytes:
    """The item's JSON."""
    return _ENCODER.encode(wire_form(item))
