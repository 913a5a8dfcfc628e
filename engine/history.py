"""What a run's context consists of, as items: a chain of rounds, each of which adds only what is new.

A round is what the client gave and what the model made of it. The history of a run that goes on from another one
begins where that one ended, so rounds are shared and nothing is copied until somebody needs all of it: a model that
is to see it under other instructions, or without the tokens it was read as.
"""

from dataclasses import dataclass, field

from engine.items import Item
from engine.made import Made, in_context, is_internal, shown


@dataclass(slots=True)
class Round:
    """One round and, through `parent`, all before it."""

    parent: "Round | None"
    given: list[Item]
    made: list[Made] = field(default_factory=list)

    def items(self) -> list[Item]:
        """The whole context in order. Cost follows the history."""
        return [item for one in self._rounds() for item in (*one.given, *_of_context(one.made))]

    def shown(self) -> list[Item]:
        """The same as clients are shown it."""
        return [item for one in self._rounds() for item in (*_not_internal(one.given), *map(shown, one.made))]

    def _rounds(self) -> list["Round"]:
        rounds: list[Round] = []
        node: Round | None = self
        while node is not None:
            rounds.append(node)
            node = node.parent
        return rounds[::-1]

    def given_last(self) -> list[Item]:
        """What was given since the model has last finished something, in order."""
        rounds: list[Round] = []
        node: Round | None = self
        while node is not None and not node.made:
            rounds.append(node)
            node = node.parent
        return [item for node in reversed(rounds) for item in node.given]


@dataclass(frozen=True, slots=True)
class Lineage:
    """A run, by its id, and through `before` all that it goes on from."""

    id: str
    before: "Lineage | None" = None

    def has(self, response_id: str) -> bool:
        """Whether it is this run, or goes on from it. Cost follows the number of runs."""
        node: Lineage | None = self
        while node is not None and node.id != response_id:
            node = node.before
        return node is not None


class Rounds:
    """The rounds of one run, if they are kept at all. `newest` is None when they are not."""

    __slots__ = ("_num_made", "newest")

    def __init__(self, before: Round | None, given: list[Item], *, is_kept: bool) -> None:
        self.newest = Round(before, given) if is_kept else None
        self._num_made = 0

    def give(self, items: list[Item]) -> None:
        """A step begins with what the client gave."""
        if self.newest is not None:
            self.newest = Round(self.newest, items)

    def make(self, finished: list[Made]) -> None:
        """All that the run has finished so far."""
        if self.newest is not None:
            self.newest.made += finished[self._num_made :]
            self._num_made = len(finished)

    def replace(self, window: list[Item], finished: list[Made]) -> None:
        """These items stand for everything before."""
        self.newest = Round(None, window)
        self._num_made = len(finished)


def _not_internal(items: list[Item]) -> list[Item]:
    return [item for item in items if not is_internal(item)]


def _of_context(made: list[Made]) -> list[Item]:
    return [item for entry in made for item in in_context(entry)]
