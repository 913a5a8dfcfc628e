"""A run's way into the store: whatever ends a step, or the run, is put there before any reader learns of it."""

from engine.backends.base import Sequence
from engine.items import Item
from engine.journal import Journal, Revival
from engine.response import Response
from engine.store import Store


class Recorder:
    """Puts the records of one run, each as soon as there is something new that has ended."""

    def __init__(
        self,
        store: Store,
        response: Response,
        sequence: Sequence,
        num_tokens: int,
        number: int = 0,
        revival: Revival | None = None,
    ) -> None:
        """num_tokens, number: as much of the token log, and as many records, are there or are not this run's."""
        self._store = store
        self._response = response
        self._sequence = sequence
        self._journal = Journal(response, num_tokens, number, revival)
        self._is_over = False

    def took(self, items: list[Item]) -> None:
        """These items were taken for the step that begins now."""
        self._journal.took(items)

    def record(self, num_tokens: int | None = None) -> bool:
        """A step or the run has ended. False when that was recorded before, or nothing more is.

        num_tokens: as much of the token log is for others to see, if not all of it.
        """
        if self._is_over:
            return False
        self._is_over = not self._response.is_open
        record = self._journal.record(self._sequence.tokens, self._sequence.num_context_tokens, num_tokens)
        self._store.put_step(self._response.id, *record)
        return True

    def stop(self) -> None:
        """Put nothing more."""
        self._is_over = True

    async def wait_durable(self) -> None:
        """Wait until all that was recorded is on disk, or lost. Raises ServerError when the store fails."""
        await self._store.wait_durable()
