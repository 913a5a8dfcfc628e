"""The events around one streamed item, for every item kind that streams: one place, live and replayed.

An item that streams is `head` events (it is announced), any number of `delta` events, and `tail` events (its text
whole, then the item whole). The same scaffold writes them while the model samples and writes them again for a reader
that comes later, so a finished item needs to keep only its text and where the deltas were cut (folded.py).

All scaffolds have the methods of the first one; `seq` is the sequence number of the (first) event that is asked for.
Their tags name them in the journal.
"""

from typing import ClassVar

import msgspec

from engine.content import OutputText, ReasoningText
from engine.events import (
    ContentPartAdded,
    ContentPartDone,
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    Event,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from engine.items import CustomToolCall, FunctionCall, ItemStatus, Message, Reasoning


class MessageScaffold(msgspec.Struct, frozen=True, gc=False, tag="message"):
    """An assistant message with one text part."""

    output_index: int
    id: str
    num_head: ClassVar[int] = 2
    num_tail: ClassVar[int] = 3

    def item(self, text: str, status: ItemStatus) -> Message:
        """The finished item."""
        return Message(role="assistant", content=[OutputText(text=text)], id=self.id, status=status)

    def head(self, seq: int) -> list[Event]:
        """The events that announce it."""
        empty = Message(role="assistant", content=[], id=self.id, status="in_progress")
        part = OutputText(text="")
        return [
            OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=empty),
            ContentPartAdded(
                sequence_number=seq + 1, item_id=self.id, output_index=self.output_index, content_index=0, part=part
            ),
        ]

    def delta(self, seq: int, piece: str) -> Event:
        """One piece of its text."""
        return OutputTextDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, content_index=0, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[Event]:
        """The events that finish it."""
        index = self.output_index
        return [
            OutputTextDone(sequence_number=seq, item_id=self.id, output_index=index, content_index=0, text=text),
            ContentPartDone(
                sequence_number=seq + 1,
                item_id=self.id,
                output_index=index,
                content_index=0,
                part=OutputText(text=text),
            ),
            OutputItemDone(sequence_number=seq + 2, output_index=index, item=self.item(text, status)),
        ]


class ReasoningScaffold(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """The model's raw reasoning as one reasoning_text part."""

    output_index: int
    id: str
    num_head: ClassVar[int] = 2
    num_tail: ClassVar[int] = 3

    def item(self, text: str, status: ItemStatus) -> Reasoning:
        return Reasoning(id=self.id, summary=[], content=[ReasoningText(text=text)], status=status)

    def head(self, seq: int) -> list[Event]:
        empty = Reasoning(id=self.id, summary=[], status="in_progress")
        part = ReasoningText(text="")
        return [
            OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=empty),
            ContentPartAdded(
                sequence_number=seq + 1, item_id=self.id, output_index=self.output_index, content_index=0, part=part
            ),
        ]

    def delta(self, seq: int, piece: str) -> Event:
        return ReasoningTextDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, content_index=0, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[Event]:
        index = self.output_index
        return [
            ReasoningTextDone(sequence_number=seq, item_id=self.id, output_index=index, content_index=0, text=text),
            ContentPartDone(
                sequence_number=seq + 1,
                item_id=self.id,
                output_index=index,
                content_index=0,
                part=ReasoningText(text=text),
            ),
            OutputItemDone(sequence_number=seq + 2, output_index=index, item=self.item(text, status)),
        ]


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

    def head(self, seq: int) -> list[Event]:
        item = self.item("", "in_progress")
        return [OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=item)]

    def delta(self, seq: int, piece: str) -> Event:
        return FunctionCallArgumentsDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[Event]:
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

    def head(self, seq: int) -> list[Event]:
        item = self.item("", "in_progress")
        return [OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=item)]

    def delta(self, seq: int, piece: str) -> Event:
        return CustomToolCallInputDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[Event]:
        index = self.output_index
        return [
            CustomToolCallInputDone(sequence_number=seq, item_id=self.id, output_index=index, input=text),
            OutputItemDone(sequence_number=seq + 1, output_index=index, item=self.item(text, status)),
        ]


Scaffold = MessageScaffold | ReasoningScaffold | FunctionCallScaffold | CustomToolCallScaffold
