"""The worker's sequences and jobs: commands in, steps through the model, reports out. No I/O, no torch.

A sequence is a list of ids and the KV of a first part of them. The rest is *pending*: given ids that were not computed
yet, and always the id that was sampled last, since its KV is only needed when something follows it. So nothing goes
through the model twice, and nothing is left out. A job begins by computing what is pending, then draws, appends what
it drew (and what its grammar forced thereafter), and so on until a stop id or its limit.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.backends.context import KV, Context
from engine.backends.frames import Adopt, Begun, Command, Drop, Extend, Failed, Report, Sample, Sampled, Stop
from engine.backends.guide import GrammarError, Guides
from engine.backends.job import Job
from engine.backends.sampling import NothingAllowed
from engine.backends.scheduler import Kind, Pace, Part, Want, plan


class Model(Protocol):
    """See `model.Model`."""

    def new_kv(self) -> Any: ...
    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> NDArray[np.float32]: ...


class Jobs:
    """All of a worker's sequences and jobs."""

    def __init__(self, model: Model, guides: Guides, now: Callable[[], float], pace: Pace) -> None:
        """now: seconds of a clock that never goes back."""
        self._model = model
        self._guides = guides
        self._now = now
        self._pace = pace
        self._contexts: dict[int, Context] = {}
        self._jobs: dict[int, Job] = {}  # by sequence, oldest first

    @property
    def is_idle(self) -> bool:
        """Whether `step` would do nothing."""
        return not any(self._wants())

    def handle(self, command: Command) -> Iterator[Report]:
        """Carry out a command; reports only of a job that begins, or fails or ends at once. Use the iterator up."""
        match command:
            case Extend():
                self._extend(command)
            case Adopt():
                self._adopt(command)
            case Sample():
                yield from self._begin(command)
            case Stop():
                self._stop(command)
            case Drop():
                self._forget(command.seq)

    def step(self) -> Iterator[Report]:
        """Take one batch through the model and draw where a context is complete. Use the iterator up."""
        batch = list(plan(self._wants(), self._pace))
        if not batch:
            return
        began = self._now()
        self._guides.look_ahead(job.guide for part in batch if (job := self._jobs.get(part.seq)) and job.guide)
        rows = self._model.step([self._work(part) for part in batch])
        ended = self._now()
        self._pace.took(sum(part.cost for part in batch), ended - began)
        for part, row in zip(batch, rows, strict=True):
            context = self._contexts[part.seq]
            context.pass_on()
            job = self._jobs.get(part.seq)
            if job is None:
                context.num_early += part.num_ids
                continue
            job.fed = began if job.fed is None else job.fed
            if not job.context.num_pending:
                job.drew = ended if job.drew is None else job.drew
                yield from self._go_on(job, partial(job.draw, row))

    def _wants(self) -> Iterator[Want]:
        for seq, job in self._jobs.items():
            if not job.context.is_following:
                kind = Kind.PROMPT if job.drew is None else Kind.SAMPLING
                yield Want(seq, kind, job.context.num_pending, job.context.kv.length)
        for seq, context in self._contexts.items():
            if context.num_ahead and context.is_early and seq not in self._jobs and not context.is_following:
                kind = Kind.PROMPT if context.is_followed else Kind.EARLY  # somebody may sample behind it
                yield Want(seq, kind, context.num_ahead, context.kv.length)

    def _work(self, part: Part) -> tuple[KV, list[int]]:
        context = self._contexts[part.seq]
        start = context.kv.length
        return context.kv, context.ids[start : start + part.num_ids]

    def _extend(self, command: Extend) -> None:
        self._jobs.pop(command.seq, None)
        context = self._contexts.get(command.seq) or Context(self._model.new_kv(), [])
        if command.base > len(context.ids):  # the server believes that we have more: a Sample will tell it
            self._forget(command.seq)
            return
        context.cut(command.base)
        context.ids += command.ids
        context.is_early = True
        self._contexts[command.seq] = context

    def _adopt(self, command: Adopt) -> None:
        source = self._contexts.get(command.source)
        if source is None:
            return
        is_moving = source.is_early or command.source in self._jobs
        if command.move:
            self._forget(command.source)
            source.cut(command.keep)
            twin = source
        else:
            twin = source.fork(command.keep)
            if not is_moving:
                source.let_go()
        self._forget(command.seq)
        self._contexts[command.seq] = twin

    def _forget(self, seq: int) -> None:
        self._jobs.pop(seq, None)
        if context := self._contexts.pop(seq, None):
            context.let_go()

    def _stop(self, command: Stop) -> None:
        job = self._jobs.get(command.seq)
        if job and job.ask.job == command.job:
            del self._jobs[command.seq]
            job.take_back()
            job.context.is_early = False
            job.context.let_go()

    def _begin(self, ask: Sample) -> Iterator[Report]:
        context = self._contexts.get(ask.seq)
        if context is None or not context.ids:
            yield Failed(ask.seq, ask.job, "the worker does not have this sequence", is_lost=True)
            return
        try:
            job = Job(ask, context, self._guides, self._now())
        except Exception as error:  # whatever a client asked for ends its own job, and no other one
            yield _failed(ask, error)
            return
        self._jobs[ask.seq] = job
        yield Begun(ask.seq, ask.job, job.reused)
        yield from self._go_on(job, list if job.end else job.start)

    def _go_on(self, job: Job, more: Callable[[], list[int]]) -> Iterator[Report]:
        """Append more ids to a job, and end it if that was its last."""
        seq, number = job.ask.seq, job.ask.job
        try:
            ids = job.keep(more())
        except Exception as error:  # as above: the model's part of the step is over, and was everybody's
            self._end(job)
            yield _failed(job.ask, error)
            return
        if ids:
            yield Sampled(seq, number, ids, job.chances)
        if job.end:
            self._end(job)
            yield job.finished(self._now())

    def _end(self, job: Job) -> None:
        del self._jobs[job.ask.seq]
        job.context.is_early = True  # what its grammar forced last need not wait for what follows it


def _failed(ask: Sample, error: Exception) -> Failed:
    if isinstance(error, GrammarError | NothingAllowed):
        return Failed(ask.seq, ask.job, str(error), by_grammar=True)
    return Failed(ask.seq, ask.job, f"{type(error).__name__}: {error}")
