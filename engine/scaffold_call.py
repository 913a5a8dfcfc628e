"""The events around calls: those whose arguments stream, and those with an action, which come whole."""

from typing import ClassVar

import msgspec

from engine.item_events import (
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    ItemEvent,
    OutputItemAdded,
    OutputItemDone,
    ShellCommandAdded,
    ShellCommandDelta,
    ShellCommandDone,
)
from engine.items import Call, CustomToolCall, FunctionCall, ItemStatus, McpApprovalRequest, ShellCall


class _CallScaffold(msgspec.Struct, frozen=True, gc=False):
    output_index: int
    id: str
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    num_head: ClassVar[int] = 1
    num_tail: ClassVar[int] = 2


class FunctionCallScaffold(_CallScaffold, frozen=True, gc=False, tag="function_call"):
    """A function call; its text is the arguments' JSON."""

    def item(self, text: str, status: ItemStatus) -> FunctionCall:
        return FunctionCall(
            id=self.id, call_id=self.call_id, name=self.name, arguments=text, status=status, namespace=self.namespace
        )

    def head(self, seq: int) -> list[ItemEvent]:
        item = self.item("", "in_progress")
        return [OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=item)]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return FunctionCallArgumentsDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
        index = self.output_index
        return [
            FunctionCallArgumentsDone(
                sequence_number=seq, item_id=self.id, output_index=index, arguments=text, name=self.name
            ),
            OutputItemDone(sequence_number=seq + 1, output_index=index, item=self.item(text, status)),
        ]


class CustomToolCallScaffold(_CallScaffold, frozen=True, gc=False, tag="custom_tool_call"):
    """A custom tool's call; its text is the free input."""

    def item(self, text: str, status: ItemStatus) -> CustomToolCall:
        return CustomToolCall(
            id=self.id, call_id=self.call_id, name=self.name, input=text, status=status, namespace=self.namespace
        )

    def head(self, seq: int) -> list[ItemEvent]:
        item = self.item("", "in_progress")
        return [OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=item)]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return CustomToolCallInputDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
        index = self.output_index
        return [
            CustomToolCallInputDone(sequence_number=seq, item_id=self.id, output_index=index, input=text),
            OutputItemDone(sequence_number=seq + 1, output_index=index, item=self.item(text, status)),
        ]


def call_events(call: Call, output_index: int, seq: int) -> list[ItemEvent]:
    """All events of a call that came whole; `seq` is the first one's number."""
    begun = call if isinstance(call, McpApprovalRequest) else msgspec.structs.replace(call, status="in_progress")
    events: list[ItemEvent] = [OutputItemAdded(sequence_number=seq, output_index=output_index, item=begun)]
    if isinstance(call, ShellCall):
        events += _command_events(call, output_index, seq + 1)
    events.append(OutputItemDone(sequence_number=seq + len(events), output_index=output_index, item=call))
    return events


def _command_events(call: ShellCall, output_index: int, seq: int) -> list[ItemEvent]:
    events: list[ItemEvent] = []
    for number, command in enumerate(call.action["commands"]):
        place = {"output_index": output_index, "command_index": number}
        first = seq + len(events)
        events += [
            ShellCommandAdded(sequence_number=first, command="", **place),
            ShellCommandDelta(sequence_number=first + 1, delta=command, **place),
            ShellCommandDone(sequence_number=first + 2, command=command, **place),
        ]
    return events
