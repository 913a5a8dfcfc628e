"""The events around a reasoning item: as the model's raw reasoning, or as the summary that a client asked for.

Nobody here can summarise without sampling again, so the summary is the raw text under another name: its one part.
`encrypted_content` is the text sealed, for a client to send back to a server that keeps nothing.
"""

from typing import ClassVar

import msgspec

from engine.content import ReasoningText, SummaryText
from engine.item_events import (
    ContentPartAdded,
    ContentPartDone,
    ItemEvent,
    OutputItemAdded,
    OutputItemDone,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    ReasoningSummaryTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from engine.items import ItemStatus, Reasoning


class _ReasoningScaffold(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    output_index: int
    id: str
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    num_head: ClassVar[int] = 2
    num_tail: ClassVar[int] = 3

    def added(self, seq: int) -> ItemEvent:
        """The event that announces the item."""
        empty = Reasoning(id=self.id, summary=[], status="in_progress")
        return OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=empty)


class ReasoningScaffold(_ReasoningScaffold, frozen=True, gc=False, tag="reasoning"):
    """The model's raw reasoning as one reasoning_text part."""

    def item(self, text: str, status: ItemStatus) -> Reasoning:
        return Reasoning(
            id=self.id,
            summary=[],
            content=[ReasoningText(text=text)],
            encrypted_content=self.encrypted_content,
            status=status,
        )

    def head(self, seq: int) -> list[ItemEvent]:
        part = ContentPartAdded(
            sequence_number=seq + 1,
            item_id=self.id,
            output_index=self.output_index,
            content_index=0,
            part=ReasoningText(text=""),
        )
        return [self.added(seq), part]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return ReasoningTextDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, content_index=0, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
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


class SummaryScaffold(_ReasoningScaffold, frozen=True, gc=False, tag="reasoning_summary"):
    """The model's reasoning as one summary_text part."""

    def item(self, text: str, status: ItemStatus) -> Reasoning:
        return Reasoning(
            id=self.id, summary=[SummaryText(text=text)], encrypted_content=self.encrypted_content, status=status
        )

    def head(self, seq: int) -> list[ItemEvent]:
        part = ReasoningSummaryPartAdded(
            sequence_number=seq + 1,
            item_id=self.id,
            output_index=self.output_index,
            summary_index=0,
            part=SummaryText(text=""),
        )
        return [self.added(seq), part]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return ReasoningSummaryTextDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, summary_index=0, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
        index = self.output_index
        return [
            ReasoningSummaryTextDone(
                sequence_number=seq, item_id=self.id, output_index=index, summary_index=0, text=text
            ),
            ReasoningSummaryPartDone(
                sequence_number=seq + 1,
                item_id=self.id,
                output_index=index,
                summary_index=0,
                part=SummaryText(text=text),
                status=msgspec.UNSET if status == "completed" else "incomplete",
            ),
            OutputItemDone(sequence_number=seq + 2, output_index=index, item=self.item(text, status)),
        ]
