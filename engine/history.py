"""What a run's context consists of, as items: a chain of rounds, each of which adds only what is new.

A round is what the client gave and what the model made of it. The history of a run that goes on from another one
begins where that one ended, so rounds are shared and nothing is copied until somebody needs all of it: a model that
is to see it under other instructions, or without the tokens it was read as.
"""

from dataclasses import dataclass, field

from engine.folded import FoldedItem
from engine.items import Call, Item


@dataclass(slots=True)
class Round:
    """One round and, through `parent`, all before it."""

    parent: "Round | None"
    given: list[Item]
    made: list[FoldedItem | Call] = field(default_factory=list)

    def items(self) -> list[Item]:
        """The whole context in order. Cost follows the history."""
        rounds: list[Round] = []
        node: Round | None = self
        while node is not None:
            rounds.append(node)
            node = node.parent
        return [item for node in reversed(rounds) for item in (*node.given, *map(_unfolded, node.made))]


def _unfolded(entry: FoldedItem | Call) -> Item:
    return entry.item() if isinstance(entry, FoldedItem) else entry
