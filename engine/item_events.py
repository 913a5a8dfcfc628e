"""Events about a run's items: how each is announced, streamed and finished.

Names and fields are the Responses API's (openai-python `ResponseStreamEvent`); the order in which they come is the
scaffolds' business.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.content import Part, SummaryText
from engine.items import WireItem


class NumberedEvent(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all events: told apart by `type`, numbered over the whole run."""

    sequence_number: int


class OutputItemAdded(NumberedEvent, tag="response.output_item.added", frozen=True):
    output_index: int
    item: WireItem


class OutputItemDone(NumberedEvent, tag="response.output_item.done", frozen=True):
    output_index: int
    item: WireItem


class ContentPartAdded(NumberedEvent, tag="response.content_part.added", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    part: Part


class ContentPartDone(NumberedEvent, tag="response.content_part.done", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    part: Part


class OutputTextDelta(NumberedEvent, tag="response.output_text.delta", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Any] = []


class OutputTextDone(NumberedEvent, tag="response.output_text.done", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[Any] = []


class ReasoningTextDelta(NumberedEvent, tag="response.reasoning_text.delta", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(NumberedEvent, tag="response.reasoning_text.done", frozen=True):
    item_id: str
    output_index: int
    content_index: int
    text: str


class ReasoningSummaryPartAdded(NumberedEvent, tag="response.reasoning_summary_part.added", frozen=True):
    item_id: str
    output_index: int
    summary_index: int
    part: SummaryText


class ReasoningSummaryTextDelta(NumberedEvent, tag="response.reasoning_summary_text.delta", frozen=True):
    item_id: str
    output_index: int
    summary_index: int
    delta: str


class ReasoningSummaryTextDone(NumberedEvent, tag="response.reasoning_summary_text.done", frozen=True):
    item_id: str
    output_index: int
    summary_index: int
    text: str


class ReasoningSummaryPartDone(NumberedEvent, tag="response.reasoning_summary_part.done", frozen=True):
    item_id: str
    output_index: int
    summary_index: int
    part: SummaryText
    status: Literal["incomplete"] | UnsetType = UNSET


class FunctionCallArgumentsDelta(NumberedEvent, tag="response.function_call_arguments.delta", frozen=True):
    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(NumberedEvent, tag="response.function_call_arguments.done", frozen=True):
    item_id: str
    output_index: int
    arguments: str
    name: str


class CustomToolCallInputDelta(NumberedEvent, tag="response.custom_tool_call_input.delta", frozen=True):
    item_id: str
    output_index: int
    delta: str


class CustomToolCallInputDone(NumberedEvent, tag="response.custom_tool_call_input.done", frozen=True):
    item_id: str
    output_index: int
    input: str


class ShellCommandAdded(NumberedEvent, tag="response.shell_call_command.added", frozen=True):
    output_index: int
    command_index: int
    command: str


class ShellCommandDelta(NumberedEvent, tag="response.shell_call_command.delta", frozen=True):
    output_index: int
    command_index: int
    delta: str


class ShellCommandDone(NumberedEvent, tag="response.shell_call_command.done", frozen=True):
    output_index: int
    command_index: int
    command: str


class CompactionCompacting(NumberedEvent, tag="response.compaction.compacting", frozen=True):
    """The context is being compacted: nothing else comes until that is done."""

    item_id: str
    output_index: int


ItemEvent = (
    OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ReasoningSummaryPartAdded
    | ReasoningSummaryTextDelta
    | ReasoningSummaryTextDone
    | ReasoningSummaryPartDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | CustomToolCallInputDelta
    | CustomToolCallInputDone
    | ShellCommandAdded
    | ShellCommandDelta
    | ShellCommandDone
    | CompactionCompacting
)
