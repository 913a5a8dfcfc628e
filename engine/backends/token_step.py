"""A step of a model while its worker samples it: what has come of it, how it ends and what it may report.

Pure: times come in. What the worker says of the step's end is the better account; of a step that was interrupted there
is none, and what the server has seen itself must do. So it is for a step that may make one call only where no grammar
sees to that: it is over with the token that ends the call, and what the worker has drawn beyond it does not count.
"""

from collections.abc import Sequence
from typing import Protocol

from engine.backends.base import Delta, Reason, StepEnd
from engine.backends.chance import Chance
from engine.backends.constraint import Constraint
from engine.backends.frames import Finished
from engine.errors import EngineError
from engine.usage import Timing, count_usage


class Parser(Protocol):
    """See `parser.StreamParser`."""

    @property
    def num_calls(self) -> int: ...
    @property
    def num_reasoning(self) -> int: ...
    def feed(self, ids: Sequence[int], chances: Sequence[Chance] | None = None, /) -> list[Delta]: ...
    def close(self, *, is_cut: bool) -> list[Delta]: ...


class Step:
    """A step under way.

    base: length of the context it samples from. limit: most tokens it may add; `ends_context`: that is because the
    context has no more room. given: tokens that are new in the context since the step before. began: now, in ms.
    top_logprobs: see `StepSpec`. parallel_calls: whether it may make more than one call.
    """

    def __init__(
        self,
        base: int,
        limit: int,
        parser: Parser,
        constraint: Constraint | None,
        *,
        given: int,
        ends_context: bool,
        began: float,
        top_logprobs: int | None = None,
        parallel_calls: bool = True,
    ) -> None:
        self.base = base
        self.limit = limit
        self.constraint = constraint
        self.top_logprobs = top_logprobs
        self.job = 0
        self._parser = parser
        self._given = given
        self._ends_context = ends_context
        self._began = began
        is_held = constraint is not None and constraint.mode != "on_trigger"
        self._ends_with_call = not parallel_calls and not is_held
        self._admitted_at: float | None = None
        self._first_at: float | None = None
        self._reused = 0
        self._num_sampled = 0
        self._num_deaths = 0
        self._num_evicted = 0
        self._fresh: list[int] = []  # sampled, in the log, not parsed yet
        self._chances: list[Chance] = []  # of the fresh ones, where they are wanted
        self._parsed: list[Delta] = []
        self._finished: Finished | None = None
        self._error: EngineError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the worker has nothing more to do for it."""
        return self._finished is not None or self._error is not None

    @property
    def num_sampled(self) -> int:
        """How many tokens it has added to the context."""
        return self._num_sampled

    # --- what happens to it

    def admitted(self, now: float) -> None:
        """Its turn has come, for the first time or again."""
        self._admitted_at = now if self._admitted_at is None else self._admitted_at

    def lost_tokens(self, count: int) -> None:
        """So many tokens of its context had lost their KV to other runs."""
        self._num_evicted += count

    def begun(self, reused: int) -> None:
        """A worker has begun with it, and has the KV of so many tokens."""
        self._reused = min(reused, self.base)

    def sampled(self, ids: Sequence[int], chances: Sequence[Chance] | None, now: float) -> int:
        """The worker drew these. How many of them count, at least one: those up to the end of the step's only call."""
        self._first_at = now if self._first_at is None else self._first_at
        if not self._ends_with_call:
            self._fresh += ids
            self._chances += chances or ()
            count = len(ids)
        else:
            count = self._parse_until_call(ids, chances)
            self._finished = self._as_seen(now) if self._parser.num_calls else None
        self._num_sampled += count
        return count

    def _parse_until_call(self, ids: Sequence[int], chances: Sequence[Chance] | None) -> int:
        for index, token_id in enumerate(ids):
            self._parsed += self._parser.feed([token_id], chances and chances[index : index + 1])
            if self._parser.num_calls:
                return index + 1
        return len(ids)

    def finished(self, report: Finished) -> None:
        """The worker came to its end."""
        self._finished = report

    def unseen_ms(self, report: Finished) -> float:
        """How long the worker was in the middle of a model's step when the job came, on this prompt as a rule."""
        if self._admitted_at is None or self._first_at is None:
            return 0.0
        return max(0.0, self._first_at - self._admitted_at - report.queue_ms - report.prefill_ms)

    def failed(self, error: EngineError) -> None:
        """It cannot go on."""
        self._error = error

    def lost(self) -> bool:
        """The worker lost it. Whether to try it again: a context that kills two workers would kill a third."""
        self._num_deaths += 1
        return self._num_deaths < 2

    # --- what comes of it

    def take(self) -> list[Delta]:
        """Deltas of what has been sampled since; the end, when it is there, with the call after the last of them.

        Empty when there is nothing to say yet. Raises BackendError when the step has failed.
        """
        if deltas := self._said():
            return deltas  # each part is handed on at once
        if self._error:
            raise self._error
        if self._finished is None:
            return []
        end = self._end(self._reason(self._finished), self._finished)
        return [*self._parser.close(is_cut=end.reason != "stop"), end]

    def interrupt(self, now: float) -> list[Delta]:
        """All that is left to say, and the end. Raises BackendError when the step has failed."""
        deltas = self._said()
        if self._error:
            raise self._error
        is_cut = self._finished is None or self._finished.reason != "stop"
        return [*deltas, *self._parser.close(is_cut=is_cut), self._end("stop", self._finished or self._as_seen(now))]

    def _said(self) -> list[Delta]:
        deltas, self._parsed = self._parsed, []
        ids, chances, self._fresh, self._chances = self._fresh, self._chances, [], []
        if ids:
            is_rated = self.top_logprobs is not None and len(chances) == len(ids)
            deltas += self._parser.feed(ids, chances if is_rated else None)
        return deltas

    def _reason(self, end: Finished) -> Reason:
        if end.reason != "length":
            return end.reason
        return "context_length_exceeded" if self._ends_context else "max_output_tokens"

    @property
    def _queued_ms(self) -> float:
        """How long it waited for a worker, or for room beside others."""
        return 0.0 if self._admitted_at is None else self._admitted_at - self._began

    def _as_seen(self, now: float) -> Finished:
        """The worker's account as far as it is known here. Until a token came, nobody knows what was prefilled."""
        first_at = now if self._first_at is None else self._first_at
        return Finished(
            seq=0,
            job=self.job,
            reason="stop",
            reused=self._reused,
            prefilled=0 if self._first_at is None else self.base - self._reused,
            queue_ms=0.0,
            prefill_ms=first_at - (self._began + self._queued_ms),
            sampling_ms=now - first_at,
        )

    def _end(self, reason: Reason, end: Finished) -> StepEnd:
        reused = min(end.reused, self.base)
        timing = Timing(
            queue_ms=self._queued_ms + end.queue_ms,
            prefill_ms=end.prefill_ms,
            sampling_ms=end.sampling_ms,
            tokens_new=self._given,
            tokens_reused=reused,
            tokens_prefilled=min(end.prefilled, self.base),
            tokens_evicted=self._num_evicted,
        )
        thoughts = min(self._parser.num_reasoning, self._num_sampled)
        usage = count_usage(self.base, self._num_sampled, cached_tokens=reused, reasoning_tokens=thoughts)
        return StepEnd(reason, usage, timing)
