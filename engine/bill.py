"""One run's account: numbers its segments, and keeps its reservation."""

from collections.abc import Callable

from engine.budget import Budget
from engine.ledger import Ended, Record, SegmentReason, Started, make_segment, to_ms
from engine.usage import Timing, Usage


class RunBill:
    """See Bill."""

    __slots__ = ("_budget", "_next", "_run", "_write")

    def __init__(
        self, run: Started, budget: Budget | None, write: Callable[[Record], None], first_segment: int = 0
    ) -> None:
        """The run starts. `write` takes each record as it comes. Raises QuotaExceeded; nothing was written then."""
        if budget is not None:
            budget.reserve(run.response_id, run.principal, run.reserved, run.at / 1000)
        self._run = run
        self._budget = budget
        self._write = write
        self._next = first_segment
        write(run)

    def settle(self, reason: SegmentReason, usage: Usage, timing: Timing, now: float) -> None:
        segment = make_segment(self._run, self._next, reason, usage, timing, now)
        self._next += 1
        if self._budget is not None:
            self._budget.settle(self._run.response_id, segment.num_computed, now)
        self._write(segment)

    def close(self, status: str, now: float) -> None:
        if self._budget is not None:
            self._budget.release(self._run.response_id)
        self._write(Ended(self._run.response_id, to_ms(now), status))
