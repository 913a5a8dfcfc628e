"""The seam to a model that scores texts, somewhere else: questions in, scores out, some time later or never."""

from collections.abc import Callable
from typing import Protocol

from engine.safety.policies import Scores


class Judge(Protocol):
    """One model. Used by many runs at a time."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked."""

    async def wait_ready(self) -> None:
        """Wait until it can be asked. Raises BackendError with the reason when it could not be loaded."""

    def ask(self, text: str, on_scores: Callable[[Scores | None], None]) -> int:
        """Put a text to it; the number of the question.

        on_scores: is called later, once, with the score of each label from 0 to 1, or with None when they are not to be
        had any more. Whoever asks decides how long to wait.
        """

    def withdraw(self, number: int) -> None:
        """Nobody waits for this any more. `on_scores` is not called."""

    def give_up(self, number: int) -> None:
        """As `withdraw`, because the answer has not come in time. What hangs is started anew."""
