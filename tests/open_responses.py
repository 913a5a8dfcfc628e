"""What Open Responses (2026-04-24) requires of responses, items and events, as strict types of ours.

Strict as its suite is: a field has the right type or is absent, required ones are there even where their value is null,
and an unknown kind of item or event is an error. Keys in addition are fine.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


Status = Literal["in_progress", "completed", "incomplete"]


# --- items -------------------------------------------------------------------------------------------------------


class Part(Strict):
    """Any content part."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal", "input_image"]
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Message(Strict):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]
    phase: Literal["commentary", "final_answer"] = "final_answer"


class FunctionCall(Strict):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str | list[Part]
    status: Status


class Reasoning(Strict):
    type: Literal["reasoning"]
    id: str
    summary: list[Part]
    content: list[Part] = []
    encrypted_content: str = ""


class Compaction(Strict):
    type: Literal["compaction"]
    id: str
    encrypted_content: str


Item = Annotated[Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction, Field(discriminator="type")]


# --- the response ------------------------------------------------------------------------------------------------


class CachedTokens(Strict):
    cached_tokens: int


class ReasoningTokens(Strict):
    reasoning_tokens: int


class Usage(Strict):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class Tool(Strict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class Failure(Strict):
    code: str
    message: str


class Incomplete(Strict):
    reason: str


class ReasoningSettings(Strict):
    effort: str | None
    summary: str | None


class Format(Strict):
    type: Literal["text", "json_object", "json_schema"]


class Text(Strict):
    format: Format


class NamedChoice(Strict):
    type: Literal["function"]
    name: str = ""


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    tools: list[NamedChoice]
    mode: Literal["none", "auto", "required"]


class Response(Strict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: Incomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Failure | None
    tools: list[Tool]
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningSettings | None
    user: str | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class Compacted(Strict):
    """The answer of `POST /responses/compact`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    usage: Usage


# --- events ------------------------------------------------------------------------------------------------------


class Event(Strict):
    sequence_number: int


class OfResponse(Event):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: Response


class OfItem(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class OfContent(Event):
    item_id: str
    output_index: int
    content_index: int


class OfPart(OfContent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part


class TextDelta(OfContent):
    type: Literal["response.output_text.delta", "response.refusal.delta", "response.reasoning.delta"]
    delta: str
    logprobs: list[Any] = []


class TextDone(OfContent):
    type: Literal["response.output_text.done", "response.reasoning.done"]
    text: str
    logprobs: list[Any] = []


class ArgumentsDelta(Event):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    arguments: str


class OfSummary(Event):
    item_id: str
    output_index: int
    summary_index: int


class SummaryPart(OfSummary):
    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    part: Part


class SummaryDelta(OfSummary):
    type: Literal["response.reasoning_summary_text.delta"]
    delta: str


class SummaryDone(OfSummary):
    type: Literal["response.reasoning_summary_text.done"]
    text: str


class Compacting(Event):
    """OpenAI's; the suite sees it where a response compacts by itself, which none of its tests does."""

    type: Literal["response.compaction.compacting"]
    item_id: str
    output_index: int


class ErrorBody(Strict):
    type: str
    code: str
    message: str
    param: str | None


class StreamError(Event):
    """Over HTTP."""

    type: Literal["error"]
    error: ErrorBody


class SocketError(Strict):
    """Over a WebSocket."""

    type: Literal["error"]
    status: int
    error: ErrorBody


_OF_RUN = (
    OfResponse | OfItem | OfPart | TextDelta | TextDone | SummaryPart | SummaryDelta | SummaryDone
    | ArgumentsDelta | ArgumentsDone | Compacting
)  # fmt: skip
StreamEvent: TypeAdapter[Any] = TypeAdapter(Annotated[_OF_RUN | StreamError, Field(discriminator="type")])
SocketEvent: TypeAdapter[Any] = TypeAdapter(Annotated[_OF_RUN | SocketError, Field(discriminator="type")])
