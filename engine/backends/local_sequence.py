"""One run's context on the local model: its tokens and parser here, a copy of its tokens and their KV in the worker.

The log of the prompt is the truth. What the worker sampled counts once it is in the log; a step that is cut short by
the worker's death goes on from there, under a new job number, and draws what it would have drawn.
"""

from collections.abc import Sequence as ListOf
from typing import Protocol

import msgspec
import trio

from engine.backends.base import Delta, Extension, StepEnd, StepSpec
from engine.backends.constraint import Constraint
from engine.backends.frames import Finished, Sample
from engine.errors import BackendError
from engine.items import Item
from engine.tokens import TokenLog
from engine.usage import Timing, count_usage


class Parser(Protocol):
    """See `parser.StreamParser`."""

    def feed(self, ids: ListOf[int], /) -> list[Delta]: ...
    def close(self) -> list[Delta]: ...


class Prompt(Protocol):
    """See `prompt.Prompt`."""

    @property
    def tokens(self) -> TokenLog: ...
    async def prepare(self, items: ListOf[Item]) -> Extension: ...
    def commit(self, extension: Extension) -> None: ...
    def open_turn(self) -> list[int]: ...
    def sampled(self, ids: ListOf[int]) -> None: ...
    def constraint(self, step: StepSpec) -> Constraint | None: ...
    def new_parser(self, step: StepSpec) -> Parser: ...


class Sampling(msgspec.Struct, frozen=True):
    """How a run draws, with the model's defaults filled in. `seed` is always one: a step may have to be repeated."""

    temperature: float
    top_p: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Desk(Protocol):
    """What a sequence asks of its backend. Nothing here waits."""

    def give(self, sequence: "LocalSequence") -> None:
        """Let the worker have what was committed, if it is up."""

    def begin(self, sequence: "LocalSequence") -> int:
        """Let the worker sample, now or when it is up; the job's number."""

    def stop(self, sequence: "LocalSequence", job: int) -> None:
        """End the job."""

    def retire(self, sequence: "LocalSequence") -> None:
        """The sequence is closed."""


class Step:
    """A step under way. `base`: length of the context it samples from."""

    def __init__(
        self, base: int, limit: int, parser: Parser, constraint: Constraint | None, *, given: int, ends_context: bool
    ) -> None:
        self.base = base
        self.limit = limit
        self.parser = parser
        self.constraint = constraint
        self.given = given
        self.ends_context = ends_context
        self.job = 0
        self.num_deaths = 0
        self.fresh: list[int] = []  # sampled, in the log, not parsed yet
        self.end: Finished | None = None
        self.error: BackendError | None = None


class LocalSequence:
    """A Sequence (see base) whose model is in the worker."""

    def __init__(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        *,
        window: int,
        stop_ids: ListOf[int],
        desk: Desk,
    ) -> None:
        """number: its name on the link. window: most tokens of a context."""
        self.number = number
        self._prompt = prompt
        self._sampling = sampling
        self._window = window
        self._stop_ids = list(stop_ids)
        self._desk = desk
        self._step: Step | None = None
        self._num_seen = 0  # tokens of the log when the last step ended
        self._is_closed = False
        self._changed = trio.Event()

    # --- for the loop (see base.Sequence)

    @property
    def tokens(self) -> TokenLog:
        return self._prompt.tokens

    @property
    def num_context_tokens(self) -> int:
        return len(self.tokens)

    async def prepare(self, items: ListOf[Item]) -> Extension:
        return await self._prompt.prepare(items)

    def commit(self, extension: Extension) -> None:
        self._prompt.commit(extension)
        if self._step is None and not self._is_closed:
            self._desk.give(self)

    def start_step(self, step: StepSpec) -> None:
        """See base. Raises RequestError for a tool choice that cannot be held; ValueError during another step."""
        if self._step or self._is_closed:
            raise ValueError("a step is under way" if self._step else "the sequence is closed")
        constraint, parser = self._prompt.constraint(step), self._prompt.new_parser(step)
        self._prompt.open_turn()
        base = len(self.tokens)
        room = max(0, self._window - base)
        limit = room if step.max_tokens is None else min(room, step.max_tokens)
        given = self.tokens.total - self._num_seen
        is_short = step.max_tokens is None or room < step.max_tokens
        self._step = Step(base, limit, parser, constraint, given=given, ends_context=is_short)
        self._step.job = self._desk.begin(self)

    async def next_deltas(self) -> list[Delta]:
        """See base. Raises ValueError without a step."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._step is None:
                raise ValueError("no step is under way")
            if deltas := self._take(self._step):
                return deltas
            await self._changed.wait()

    def cancel_step(self) -> None:
        if self._step and not self._step.end:
            self._desk.stop(self, self._step.job)
        self._end_step()

    def close(self) -> None:
        if not self._is_closed:
            self.cancel_step()
            self._is_closed = True
            self._desk.retire(self)

    # --- for the backend

    @property
    def job(self) -> int:
        """The number of the job under way, 0 for none."""
        return self._step.job if self._step and not self._step.end and not self._step.error else 0

    def ask(self, job: int) -> Sample:
        """What is still to be sampled of the step under way."""
        assert self._step
        num_sampled = len(self.tokens) - self._step.base
        return Sample(
            self.number,
            job,
            self._step.limit - num_sampled,
            self._stop_ids,
            self._sampling.seed,
            self._sampling.temperature,
            self._sampling.top_p,
            self._sampling.presence_penalty,
            self._sampling.frequency_penalty,
            num_sampled,
            self._step.constraint,
        )

    def on_sampled(self, ids: list[int]) -> None:
        """The worker drew these."""
        assert self._step
        self._prompt.sampled(ids)
        self._step.fresh += ids
        self._notify()

    def on_finished(self, report: Finished) -> None:
        """The worker came to the step's end."""
        assert self._step
        self._step.end = report
        self._notify()

    def on_failed(self, message: str) -> None:
        """The step cannot go on."""
        assert self._step
        self._step.error = BackendError(message)
        self._notify()

    def on_lost(self) -> bool:
        """The worker lost the step. Whether to try it again: a context that kills two workers would kill a third."""
        assert self._step
        self._step.num_deaths += 1
        return self._step.num_deaths < 2

    def on_begun(self, job: int) -> None:
        """The step goes on under another number."""
        assert self._step
        self._step.job = job

    # --- inside

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _take(self, step: Step) -> list[Delta]:
        """Deltas of what has been sampled since; empty when there is nothing to say yet."""
        ids, step.fresh = step.fresh, []
        deltas = step.parser.feed(ids) if ids else []
        if deltas:
            return deltas  # the end, if there, with the next call: cheap, and each part is handed on at once
        if step.error:
            raise step.error
        if step.end:
            deltas += [*step.parser.close(), self._step_end(step, step.end)]
            self._end_step()
        return deltas

    def _end_step(self) -> None:
        self._step = None
        self._num_seen = self.tokens.total

    def _step_end(self, step: Step, end: Finished) -> StepEnd:
        num_sampled = len(self.tokens) - step.base
        timing = Timing(
            queue_ms=end.queue_ms,
            prefill_ms=end.prefill_ms,
            sampling_ms=end.sampling_ms,
            tokens_new=step.given,
            tokens_reused=min(end.reused, step.base),
            tokens_prefilled=min(end.prefilled, step.base),
        )
        usage = count_usage(step.base, num_sampled, cached_tokens=min(end.reused, step.base))
        if end.reason == "stop":
            return StepEnd("stop", usage, timing)
        return StepEnd("context_length_exceeded" if step.ends_context else "max_output_tokens", usage, timing)
