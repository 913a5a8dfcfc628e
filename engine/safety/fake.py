"""Classifiers for tests and for trying things out: they do what they are told, raising and hanging included."""

from collections.abc import Callable

from engine.safety.config import Action, Place
from engine.safety.patterns import Scan
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
