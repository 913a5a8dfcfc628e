"""Server events: everything a run writes into its log, one frozen struct per `type`.

Names and fields are the Responses API's (openai-python `ResponseStreamEvent`). Ours in addition: `response.done` (the
prototype's pause) and `response.tokens`. Events carry a `sequence_number` that rises by one over the whole run.
"""

from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from engine.errors import EngineError
from engine.hosted_events import AnyHostedEvent
from engine.item_events import ItemEvent, NumberedEvent, OutputItemAdded, OutputItemDone
from engine.items import decode_item, wire_form
from engine.safety.verdict import Finding
from engine.tokens import Span
from engine.toolspec import SkippedTool
from engine.usage import Timing, Usage


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete. policy, place: of the policy behind a `content_filter`; a service's has none."""

    reason: str
    policy: str | UnsetType = UNSET
    place: str | UnsetType = UNSET

    @classmethod
    def of(cls, reason: str, blocked_by: Finding | None) -> "IncompleteDetails":
        """With what of the finding the client may know."""
        return cls(reason) if blocked_by is None else cls(reason, blocked_by.policy, blocked_by.place)


class ErrorDetails(msgspec.Struct, frozen=True):
    """Of a failed response. `type` is absent for a `server_error`, `param` where no field of the request is meant."""

    code: str
    message: str
    type: str | UnsetType = UNSET
    param: str | UnsetType = UNSET

    @classmethod
    def of(cls, error: EngineError) -> "ErrorDetails":
        """What the client may know of the error."""
        kind = UNSET if error.kind == "server_error" else error.kind
        return cls(error.code, error.message, kind, error.param or UNSET)


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The response as clients read it. Every key that Open Responses requires is there, with the right type.

    Extensions of ours: `run_usage` (sum over steps, while `usage` is the last step's), `timing`, `keep_open`,
    `resumable`, `skipped_tools`, `safety` (what policies have found).
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ErrorDetails | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None = None
    conversation: dict[str, str] | UnsetType = UNSET
    instructions: str | None = None
    output: list[Any] = []
    tools: list[Any] = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    truncation: str = "disabled"
    text: Any = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    reasoning: Any = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool = False
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | UnsetType = UNSET
    prompt_cache_options: dict[str, str] | UnsetType = UNSET
    user: str | None = None
    usage: Usage | None = None
    run_usage: Usage | UnsetType = UNSET
    timing: "TimingReport | UnsetType" = UNSET
    keep_open: bool = False
    resumable: bool = False
    skipped_tools: list[SkippedTool] | UnsetType = UNSET
    safety: list[Finding] | UnsetType = UNSET


class TimingReport(msgspec.Struct, frozen=True):
    """Times of the step that just ended and of the run so far."""

    step: Timing
    run: Timing


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for the client: what it is and how its answer names it."""

    type: str
    name: str
    item_id: str
    answer_type: str
    answer_key: str


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What `response.done` says. Constant size: it never repeats the run so far."""

    id: str
    object: Literal["response"] = "response"
    status: Literal["in_progress"] = "in_progress"
    usage: Usage
    run_usage: Usage
    pending: list[PendingCall]
    timing: TimingReport


class ResponseCreated(NumberedEvent, tag="response.created", frozen=True):
    response: ResponseObject


class ResponseInProgress(NumberedEvent, tag="response.in_progress", frozen=True):
    response: ResponseObject


class ResponseDone(NumberedEvent, tag="response.done", frozen=True):
    """The step is over and the run waits for the client."""

    response: Pause


class ResponseInjected(NumberedEvent, tag="response.inject.created", frozen=True):
    """What the client injected has been taken in."""

    response_id: str


class ResponseCompleted(NumberedEvent, tag="response.completed", frozen=True):
    response: ResponseObject


class ResponseIncomplete(NumberedEvent, tag="response.incomplete", frozen=True):
    response: ResponseObject


class ResponseFailed(NumberedEvent, tag="response.failed", frozen=True):
    response: ResponseObject


class ResponseTokens(NumberedEvent, tag="response.tokens", frozen=True):
    """Token ids that joined the context since the last such event (`include: ["response.tokens"]`)."""

    response_id: str
    spans: list[Span]


Event = (
    ResponseCreated
    | ResponseInProgress
    | ResponseDone
    | ResponseInjected
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ResponseTokens
    | ItemEvent
    | AnyHostedEvent
)

FinalEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
Terminal = ResponseDone | FinalEvent
TERMINAL_TYPES: Final = (ResponseDone, ResponseCompleted, ResponseIncomplete, ResponseFailed)

_ENCODER: Final = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """The event's JSON, without a lane."""
    return _ENCODER.encode(event)


class _Head(msgspec.Struct):
    type: str


class _ItemEvent(msgspec.Struct):
    """The union of items cannot be decoded as such, since one kind of them is any JSON object."""

    sequence_number: int
    output_index: int
    item: msgspec.Raw


_HEAD: Final = msgspec.json.Decoder(_Head)
_ITEM_EVENT: Final = msgspec.json.Decoder(_ItemEvent)
_KINDS: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
_DECODERS: Final = {
    tag: msgspec.json.Decoder(kind) for tag, kind in _KINDS.items() if kind not in (OutputItemAdded, OutputItemDone)
}


def decode_event(data: bytes | msgspec.Raw) -> Event:
    """The event that was encoded; it encodes to the same bytes. Raises msgspec.DecodeError, KeyError, RequestError."""
    tag = _HEAD.decode(data).type
    if decoder := _DECODERS.get(tag):
        event: Event = decoder.decode(data)
        return event
    raw = _ITEM_EVENT.decode(data)
    about: Event = _KINDS[tag](
        sequence_number=raw.sequence_number, output_index=raw.output_index, item=wire_form(decode_item(raw.item))
    )
    return about
