"""What one run costs, measured where it is spent: its bill is settled before anybody learns that a step has ended."""

from contextlib import suppress

import msgspec

from engine.backends.base import Sequence
from engine.clock import now_ms, wall_clock
from engine.errors import ServerError
from engine.ledger import Bill, Ledger, SegmentReason
from engine.usage import Timing, Usage, count_usage


class Meter:
    """The meter of a run that has a bill.

    A step that is cut has no usage of its own. It is settled with what is known: its context, of which the part that
    was there when the step before ended is taken for cached, and the tokens that have joined it since.
    """

    __slots__ = ("_bill", "_ledger", "_num_before", "_num_input", "_sequence", "_waits")

    def __init__(self, bill: Bill, ledger: Ledger, sequence: Sequence, num_before: int, *, waits: bool) -> None:
        """num_before: tokens that were in the context before the run. waits: settle until it is on disk."""
        self._bill = bill
        self._ledger = ledger
        self._sequence = sequence
        self._waits = waits
        self._num_before = num_before
        self._num_input: int | None = None  # of the step that is sampled

    def step_started(self) -> None:
        """A step is sampled from now on."""
        self._num_input = self._sequence.num_context_tokens

    async def settle(self, reason: SegmentReason, usage: Usage, timing: Timing) -> Timing:
        """Something has been sampled: write down what that took. The timing with what writing it down took."""
        started_ms = now_ms()
        self._num_input = None
        self._num_before = self._sequence.num_context_tokens
        self._bill.settle(reason, usage, timing, wall_clock())
        if self._waits:
            with suppress(ServerError):  # has been logged; the step goes on
                await self._ledger.wait_durable()
        return msgspec.structs.replace(timing, ledger_ms=now_ms() - started_ms)

    def context_replaced(self) -> None:
        """Nothing of the context that the next step begins with has been computed."""
        self._num_before = 0

    def end(self, status: str) -> None:
        """The run has ended, perhaps in the midst of a step."""
        if (num_input := self._num_input) is not None:
            num_sampled = max(self._sequence.num_context_tokens - num_input, 0)
            usage = count_usage(num_input, num_sampled, cached_tokens=min(self._num_before, num_input))
            self._bill.settle("cut", usage, Timing(), wall_clock())
        self._bill.close(status, wall_clock())
