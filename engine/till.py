"""Where runs are paid for: what is left to spend, and the meter of each that starts."""

from contextlib import suppress

from engine.backends.base import Sequence
from engine.clock import wall_clock
from engine.errors import ServerError
from engine.ledger import Ledger
from engine.meter import Meter
from engine.request import RunRequest
from engine.response import Response
from engine.settings import Settings


class Till:
    """The way to a ledger. Without one nothing is counted and nobody is refused."""

    def __init__(self, ledger: Ledger | None, settings: Settings) -> None:
        self._ledger = ledger
        self._settings = settings

    def check(self, principal: str) -> None:
        """Raises QuotaExceeded when nothing is left to spend."""
        if self._ledger is not None:
            self._ledger.check(principal, wall_clock())

    def open_meter(
        self,
        response_id: str,
        request: RunRequest,
        principal: str,
        sequence: Sequence,
        num_new_tokens: int,
        num_sampled: int | None = None,
    ) -> Meter | None:
        """The meter of a run that is about to start. Raises QuotaExceeded.

        Set aside are what is new in its input and what it may sample, or a guess at that where nobody says.
        """
        num_sampled = num_sampled or request.echo.max_output_tokens or self._settings.reserved_output_tokens
        num_tokens = num_new_tokens + num_sampled if request.generate else 0
        return self._meter(response_id, request, principal, sequence, num_tokens, sequence.num_context_tokens)

    async def next_segment(self, response_id: str) -> int:
        """The number of the first segment that a run samples when it goes on: the ledger may know of later ones.

        Its store reaches the disk behind it, and what was cut is not stored: those steps are sampled again.
        """
        if self._ledger is None:
            return 0
        with suppress(ServerError):  # has been logged; the run goes on
            return await self._ledger.next_segment(response_id)
        return 0

    def meter_again(self, response: Response, principal: str, sequence: Sequence, next_segment: int) -> Meter | None:
        """The meter of a run that goes on in this life of the server. It has started, so no budget stops it."""
        first_segment = max(next_segment, response.progress.num_segments)
        return self._meter(response.id, response.request, principal, sequence, 0, 0, first_segment)

    def _meter(
        self,
        response_id: str,
        request: RunRequest,
        principal: str,
        sequence: Sequence,
        num_tokens: int,
        num_before: int,
        first_segment: int = 0,
    ) -> Meter | None:
        ledger = self._ledger
        if ledger is None:
            return None
        model, now = request.echo.model, wall_clock()
        bill = ledger.open_bill(response_id, principal, model, num_tokens, now, first_segment)
        return Meter(bill, ledger, sequence, num_before, waits=self._settings.ledger_wait)
