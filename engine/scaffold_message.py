"""The events around an assistant's message, with or without the log-probabilities of its tokens."""

from typing import ClassVar

import msgspec

from engine.content import OutputText
from engine.item_events import (
    ContentPartAdded,
    ContentPartDone,
    ItemEvent,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
)
from engine.items import ItemStatus, Message


class MessageScaffold(msgspec.Struct, frozen=True, gc=False, tag="message", omit_defaults=True):
    """An assistant message with one text part. `agent` says who speaks; `phase` is known when the message is over."""

    output_index: int
    id: str
    agent: str | msgspec.UnsetType = msgspec.UNSET
    phase: str | msgspec.UnsetType = msgspec.UNSET
    num_head: ClassVar[int] = 2
    num_tail: ClassVar[int] = 3

    def part(self, text: str) -> OutputText:
        """The finished part."""
        return OutputText(text=text)

    def item(self, text: str, status: ItemStatus) -> Message:
        return Message(
            role="assistant",
            content=[self.part(text)],
            id=self.id,
            status=status,
            phase=self.phase,
            agent=self._agent,
        )

    @property
    def _agent(self) -> dict[str, str] | msgspec.UnsetType:
        return {"agent_name": self.agent} if self.agent else msgspec.UNSET

    def head(self, seq: int) -> list[ItemEvent]:
        empty = Message(role="assistant", content=[], id=self.id, status="in_progress", agent=self._agent)
        part = OutputText(text="")
        return [
            OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=empty),
            ContentPartAdded(
                sequence_number=seq + 1, item_id=self.id, output_index=self.output_index, content_index=0, part=part
            ),
        ]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return OutputTextDelta(
            sequence_number=seq, item_id=self.id, output_index=self.output_index, content_index=0, delta=piece
        )

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
        index, part = self.output_index, self.part(text)
        return [
            OutputTextDone(
                sequence_number=seq,
                item_id=self.id,
                output_index=index,
                content_index=0,
                text=text,
                logprobs=part.logprobs,
            ),
            ContentPartDone(sequence_number=seq + 1, item_id=self.id, output_index=index, content_index=0, part=part),
            OutputItemDone(sequence_number=seq + 2, output_index=index, item=self.item(text, status)),
        ]


class RatedMessageScaffold(MessageScaffold, frozen=True, gc=False, tag="rated_message", omit_defaults=True):
    """`rated` has the log-probabilities of each piece, as JSON, and grows with the pieces."""

    rated: list[list[msgspec.Raw]] = msgspec.field(default_factory=list)

    def part(self, text: str) -> OutputText:
        return OutputText(text=text, logprobs=[token for piece in self.rated for token in piece])

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        return OutputTextDelta(
            sequence_number=seq,
            item_id=self.id,
            output_index=self.output_index,
            content_index=0,
            delta=piece,
            logprobs=self.rated[index],
        )
