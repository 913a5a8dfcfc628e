"""A classifier and a judge for tests: they do what they are told, raising and hanging included."""

from collections.abc import Callable

from engine.errors import BackendError
from engine.safety.config import Action, Place
from engine.safety.patterns import Scan
from engine.safety.policies import Scores
from engine.safety.verdict import Verdict

ANYWHERE: frozenset[Place] = frozenset({"input", "tool_output", "output", "arguments"})


class FakeClassifier:
    """Says what `rule` says of each piece of text, and holds nothing back."""

    def __init__(
        self,
        rule: Callable[[str], Verdict],
        *,
        name: str = "fake",
        on: frozenset[Place] = ANYWHERE,
        action: Action = "block",
    ) -> None:
        self.name = name
        self.on = on
        self.action: Action = action
        self.seen: list[str] = []
        self._rule = rule

    def classify(self, before: Scan, text: str, *, is_last: bool) -> tuple[Verdict, Scan]:
        self.seen.append(text)
        return self._rule(text), before


class FakeJudge:
    """Keeps what it is asked until it is told the answer. `failure`: why it could not be loaded."""

    def __init__(self, failure: str = "") -> None:
        self.open: dict[int, str] = {}
        self.withdrawn: list[str] = []
        self.given_up: list[str] = []
        self._failure = failure
        self._answers: dict[int, Callable[[Scores | None], None]] = {}

    @property
    def is_ready(self) -> bool:
        return not self._failure

    async def wait_ready(self) -> None:
        if self._failure:
            raise BackendError(self._failure)

    def ask(self, text: str, on_scores: Callable[[Scores | None], None]) -> int:
        number = len(self._answers)
        self._answers[number], self.open[number] = on_scores, text
        return number

    def withdraw(self, number: int) -> None:
        self.withdrawn.append(self.open.pop(number))

    def give_up(self, number: int) -> None:
        self.given_up.append(self.open.pop(number))

    def answer(self, scores: Scores | None) -> None:
        """Answer the oldest question."""
        number = next(iter(self.open))
        del self.open[number]
        self._answers[number](scores)
