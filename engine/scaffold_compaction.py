"""The events around a compaction, whose content is known only when it is over."""

from typing import ClassVar

import msgspec

from engine.item_events import CompactionCompacting, ItemEvent, OutputItemAdded, OutputItemDone
from engine.items import Compaction, ItemStatus


class CompactionScaffold(msgspec.Struct, frozen=True, gc=False, tag="compaction"):
    """What is left of a context that was too long. `encrypted_content` is there when that is known."""

    output_index: int
    id: str
    encrypted_content: str = ""
    num_head: ClassVar[int] = 2
    num_tail: ClassVar[int] = 1

    def item(self, text: str, status: ItemStatus) -> Compaction:
        return Compaction(id=self.id, encrypted_content=self.encrypted_content)

    def head(self, seq: int) -> list[ItemEvent]:
        empty = Compaction(id=self.id, encrypted_content="")
        return [
            OutputItemAdded(sequence_number=seq, output_index=self.output_index, item=empty),
            CompactionCompacting(sequence_number=seq + 1, item_id=self.id, output_index=self.output_index),
        ]

    def delta(self, seq: int, piece: str, index: int) -> ItemEvent:
        raise ValueError("a compaction comes whole")

    def tail(self, seq: int, text: str, status: ItemStatus) -> list[ItemEvent]:
        return [OutputItemDone(sequence_number=seq, output_index=self.output_index, item=self.item(text, status))]
