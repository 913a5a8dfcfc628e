"""One run's context on a model that takes token ids: tokens and parser here, the sampling in a worker of its backend.

The worker is a process of ours with a copy of the tokens and their KV, or somebody else's service. The log of the
prompt is the truth. What the worker sampled counts once it is in the log; a step that is cut short by the worker's
death goes on from there (the local one under a new job number, drawing what it would have drawn).
"""

from collections.abc import Sequence as ListOf
from typing import Final, Protocol

import msgspec
import trio

from engine.backends.base import Delta, Extension, Past, RunSpec, StepEnd, StepSpec
from engine.backends.constraint import Constraint
from engine.backends.frames import Begun, Finished, Sample, Sampled
from engine.backends.token_step import Parser, Step
from engine.clock import now_ms
from engine.errors import EngineError
from engine.items import Answer, Item
from engine.tokens import Span, TokenLog

# A step of 16 ids takes as long as one of a single id, and may be in the way when the rest comes: less is not worth it.
_WORTHWHILE: Final = 32


class Prompt(Protocol):
    """See `prompt.Prompt`."""

    @property
    def tokens(self) -> TokenLog: ...
    @property
    def num_turn_tokens(self) -> int: ...
    async def prepare(self, items: ListOf[Item]) -> Extension: ...
    async def foresee(self, items: ListOf[Answer]) -> list[int]: ...
    def commit(self, extension: Extension) -> None: ...
    def open_turn(self) -> list[int]: ...
    def sampled(self, ids: ListOf[int], logprobs: ListOf[float] | None = None) -> None: ...
    def constraint(self, step: StepSpec) -> Constraint | None: ...
    def new_parser(self, step: StepSpec) -> Parser: ...
    def fork(self) -> "Prompt": ...
    def restart(self) -> None: ...
    def restore(self, spans: ListOf[Span]) -> None: ...


class Sampling(msgspec.Struct, frozen=True):
    """How a run draws, with the model's defaults filled in. `seed` is always one: a step may have to be repeated."""

    temperature: float
    top_p: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Desk(Protocol):
    """What a sequence asks of its backend. Nothing here waits."""

    def new_sequence(self, prompt: Prompt, spec: RunSpec) -> "TokenSequence":
        """Another sequence over this prompt."""

    def give(self, sequence: "TokenSequence", ahead: ListOf[int] = ()) -> None:
        """Let the worker have what was committed, if it is up, and what will probably follow."""

    def begin(self, sequence: "TokenSequence") -> int:
        """Let the worker sample, now or when it is up; the job's number."""

    def stop(self, sequence: "TokenSequence", job: int) -> None:
        """End the job."""

    def retire(self, sequence: "TokenSequence") -> None:
        """The sequence is closed."""

    def take_lost(self, sequence: "TokenSequence") -> int:
        """How many of its tokens lost their KV to others since this was asked last."""


class TokenSequence:
    """A Sequence (see base) whose model is in a worker."""

    def __init__(
        self,
        number: int,
        spec: RunSpec,
        prompt: Prompt,
        sampling: Sampling,
        *,
        window: int,
        stop_ids: ListOf[int],
        desk: Desk,
    ) -> None:
        """number: its name at its backend. window: most tokens of a context."""
        self.number = number
        self.spec = spec
        self.prompt = prompt
        self._sampling = sampling
        self._window = window
        self._stop_ids = list(stop_ids)
        self._desk = desk
        self._step: Step | None = None
        self._num_foreseen = 0  # ids of the next extension that the worker was given early
        self._num_seen = 0  # tokens of the log when the last step ended
        self._is_closed = False
        self._changed = trio.Event()

    # --- for the loop (see base.Sequence)

    @property
    def tokens(self) -> TokenLog:
        return self.prompt.tokens

    @property
    def num_context_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_new_tokens(self) -> int:
        """Tokens since the end of the step before: what was given, and what this step has sampled."""
        return self.tokens.total - self._num_seen

    @property
    def num_turn_tokens(self) -> int:
        return self.prompt.num_turn_tokens

    async def prepare(self, items: ListOf[Item]) -> Extension:
        return await self.prompt.prepare(items)

    async def foresee(self, outputs: ListOf[Answer]) -> None:
        """See base. The worker prefills them while the tool still runs."""
        ids = await self.prompt.foresee(outputs)
        if self._step is None and not self._is_closed and len(ids) >= self._num_foreseen + _WORTHWHILE:
            self._num_foreseen = len(ids)
            self._desk.give(self, ids)

    def commit(self, extension: Extension) -> None:
        self.prompt.commit(extension)
        if self._step is None and not self._is_closed:
            self._desk.give(self)

    def start_step(self, step: StepSpec) -> None:
        """See base. Raises RequestError for a tool choice that cannot be held; ValueError during another step."""
        self._expect_rest()
        constraint, parser = self.prompt.constraint(step), self.prompt.new_parser(step)
        self.prompt.open_turn()
        base = len(self.tokens)
        room = max(0, self._window - base)
        limit = room if step.max_tokens is None else min(room, step.max_tokens)
        given = self.tokens.total - self._num_seen
        is_short = step.max_tokens is None or room < step.max_tokens
        self._step = Step(
            base,
            limit,
            parser,
            constraint,
            given=given,
            ends_context=is_short,
            began=now_ms(),
            top_logprobs=step.top_logprobs,
            parallel_calls=self.spec.parallel_tool_calls,
        )
        self._step.job = self._desk.begin(self)

    async def next_deltas(self) -> list[Delta]:
        """See base. Raises ValueError without a step."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._step is None:
                raise ValueError("no step is under way")
            if deltas := self._step.take():
                if isinstance(deltas[-1], StepEnd):
                    self._end_step()
                return deltas
            await self._changed.wait()

    def cancel_step(self) -> None:
        if self._step:
            self._stop(self._step)
            self._end_step()

    def interrupt(self) -> list[Delta]:
        if self._step is None:
            raise ValueError("no step is under way")
        self._stop(self._step)
        deltas = self._step.interrupt(now_ms())
        self._end_step()
        return deltas

    def fork(self, response_id: str) -> "TokenSequence":
        """See base. The worker copies the KV of what both have in common when the fork is first committed to."""
        self._expect_rest()
        twin = self._desk.new_sequence(self.prompt.fork(), msgspec.structs.replace(self.spec, response_id=response_id))
        twin._num_seen = self._num_seen
        return twin

    def restart(self) -> None:
        self._expect_rest()
        self.prompt.restart()
        self._num_seen = self.tokens.total

    def restore(self, past: Past) -> None:
        """See base. The worker may begin at once to compute what it lacks, which is all of it after a kill."""
        self._expect_rest()
        self.prompt.restore(past.spans)
        self._num_seen = self.tokens.total
        self._desk.give(self)

    def close(self) -> None:
        if not self._is_closed:
            self.cancel_step()
            self._is_closed = True
            self._desk.retire(self)

    # --- for the backend

    def ask(self, job: int) -> Sample:
        """What is still to be sampled of the step under way, whose turn it is now."""
        step = self._under_way
        step.admitted(now_ms())
        return Sample(
            self.number,
            job,
            step.limit - step.num_sampled,
            self._stop_ids,
            self._sampling.seed,
            self._sampling.temperature,
            self._sampling.top_p,
            self._sampling.presence_penalty,
            self._sampling.frequency_penalty,
            step.num_sampled,
            step.constraint,
            step.top_logprobs,
        )

    def on_asked(self, job: int) -> None:
        """The step goes on under another number."""
        self._under_way.job = job

    def on_begun(self, report: Begun) -> None:
        """A worker has begun with the step."""
        self._under_way.begun(report.reused)

    def on_sampled(self, report: Sampled) -> None:
        """The worker drew more. The job may be stopped by that."""
        step, chances = self._under_way, report.chances
        count = step.sampled(report.ids, chances, now_ms())
        logprobs = None if chances is None else [chance.logprob for chance in chances[:count]]
        self.prompt.sampled(report.ids[:count], logprobs)
        if step.is_over:
            self._desk.stop(self, step.job)
        self._notify()

    def on_finished(self, report: Finished) -> None:
        """The worker came to the step's end."""
        self._under_way.lost_tokens(self._desk.take_lost(self))
        self._under_way.finished(report)
        self._notify()

    def with_unseen(self, report: Finished) -> Finished:
        """A worker's report, with the time that it did not see."""
        unseen_ms = self._under_way.unseen_ms(report)
        return msgspec.structs.replace(report, prefill_ms=report.prefill_ms + unseen_ms)

    def on_failed(self, error: EngineError) -> None:
        """The step cannot go on."""
        self._under_way.failed(error)
        self._notify()

    def on_lost(self) -> bool:
        """The worker lost the step. Whether to try it again."""
        return self._under_way.lost()

    # --- inside

    @property
    def _under_way(self) -> Step:
        assert self._step
        return self._step

    def _expect_rest(self) -> None:
        if self._step or self._is_closed:
            raise ValueError("a step is under way" if self._step else "the sequence is closed")

    def _stop(self, step: Step) -> None:
        if not step.is_over:
            self._desk.stop(self, step.job)

    def _end_step(self) -> None:
        self._num_foreseen = 0
        self._step = None
        self._num_seen = self.tokens.total

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
