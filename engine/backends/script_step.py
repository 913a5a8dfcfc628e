"""A scripted step while it is played: how far, since when, and what it may report."""

from bisect import bisect_right
from typing import Final, NamedTuple

import trio

from engine.backends.base import Delta, Reason, StepEnd
from engine.backends.scenario_values import ScriptedUsage
from engine.backends.script_take import Take
from engine.usage import Timing, Usage, count_usage

MAX_BATCH: Final = 16  # deltas given at once; other tasks run between two batches. Guessed, not measured


class Given(NamedTuple):
    """Tokens that a step starts from: the whole context, what of it is reused, what the client has just given."""

    num_input: int
    num_kept: int
    num_new: int


class Step:
    """One step being played: how far, since when, and what it may report."""

    def __init__(self, take: Take, usage: ScriptedUsage, given: Given) -> None:
        self.take = take
        self.position = 0
        self._usage = usage
        self._given = given
        self._started_at = trio.current_time()
        self.num_sampled = 0  # tokens, known once the step is settled
        self._first_at: float | None = None
        self._sleep: trio.CancelScope | None = None

    async def wait_due(self) -> None:
        """Return when the next delta, or the end, is due. Lets other tasks run, but for a first delta that is there."""
        take = self.take
        if take.dues is None:
            if self._first_at is not None:
                await trio.lowlevel.checkpoint()
            return
        due = take.dues[self.position] if self.position < len(take.deltas) else take.end_due
        with trio.CancelScope() as self._sleep:
            await trio.sleep_until(self._started_at + due)
        self._sleep = None

    def wake(self) -> None:
        """End a `wait_due` that is going on."""
        if self._sleep is not None:
            self._sleep.cancel()

    def due_deltas(self) -> list[Delta]:
        """The next deltas that are due, oldest first, at most 16; the first alone, which waits for no others then."""
        take, start = self.take, self.position
        end = min(start + (MAX_BATCH if start else 1), len(take.deltas))
        if take.dues is not None and start < end:
            end = max(start + 1, bisect_right(take.dues, self._elapsed(), start, end))
        self.position = end
        if self._first_at is None:
            self._first_at = trio.current_time()
        return take.deltas[start:end]

    def _elapsed(self) -> float:
        # A nanosecond more, or rounding would leave out what the wait was for.
        return trio.current_time() - self._started_at + 1e-9

    def end(self, reason: Reason) -> StepEnd:
        """The StepEnd of what has been taken so far."""
        return StepEnd(reason, self._reported_usage(), self._timing())

    def _reported_usage(self) -> Usage:
        said, told = self._usage, self.take.count(self.position)
        counted = (self._given.num_input, self.num_sampled, self._given.num_kept, min(told[1], self.num_sampled))
        wanted = (said.input_tokens, said.output_tokens, said.cached_tokens, said.reasoning_tokens)
        num_input, num_output, num_cached, num_reasoning = (
            real if scripted is None else scripted for real, scripted in zip(counted, wanted, strict=True)
        )
        return count_usage(num_input, num_output, cached_tokens=num_cached, reasoning_tokens=num_reasoning)

    def _timing(self) -> Timing:
        now = trio.current_time()
        first_at = now if self._first_at is None else self._first_at
        return Timing(
            prefill_ms=(first_at - self._started_at) * 1000,
            sampling_ms=(now - first_at) * 1000,
            tokens_new=self._given.num_new,
            tokens_reused=self._given.num_kept,
            tokens_prefilled=self._given.num_input - self._given.num_kept,
        )
