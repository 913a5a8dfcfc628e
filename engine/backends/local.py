"""The local model as a Backend: sequences here, one worker process with the model, a KV budget between them.

Who does what: `token_sequence` knows one run, `worker_link` keeps a worker alive and carries frames, `kv_cache` decides
whose KV stays. This file joins them, and restores a new worker after a death: the steps that were under way begin
again from their token logs; paused sequences are sent again when their next step begins.
"""

import logging
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
import trio

from engine.backends.admission import Admission
from engine.backends.base import ModelInfo, Route, RunSpec, model_not_found
from engine.backends.frames import (
    Adopt,
    Begun,
    Command,
    Drop,
    Extend,
    Failed,
    Finished,
    Ready,
    Report,
    ReportReader,
    Sampled,
    Stop,
)
from engine.backends.kv_cache import KVCache, Use
from engine.backends.rate_limit import RateLimit
from engine.backends.token_sequence import Prompt, Sampling, TokenSequence
from engine.backends.worker_link import WorkerLink
from engine.errors import BackendError, EngineError, RequestError

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend must know of its model.

    stop_ids: all that end a step; the first is the one that a complete grammar is ended with. temperature, top_p: of
    runs that name none; 0 is greedy.
    """

    folder: Path
    id: str
    context_window: int
    stop_ids: tuple[int, ...]
    temperature: float = 0.0
    top_p: float = 1.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that run, or wait for a worker or for room; runs that are open and do neither; KV and what came of it.

    kv_tokens: that the worker holds. The others count from the start, over all steps that ended.
    """

    running: int
    waiting: int
    paused: int
    kv_tokens: int
    tokens_reused: int
    tokens_prefilled: int
    tokens_evicted: int


class LocalBackend:
    """A Backend (see base) over one worker. Made by `open_local_backend`."""

    def __init__(
        self,
        model: LocalModel,
        make_prompt: Callable[[RunSpec], Prompt],
        link: WorkerLink[Ready, Report],
        max_kv_bytes: int,
    ) -> None:
        self._model = model
        self._make_prompt = make_prompt
        self._link = link
        self._max_kv_bytes = max_kv_bytes
        self._cache = KVCache(max_tokens=0)  # the budget follows when the worker says what a token takes
        self._admission = Admission(max_tokens=0)
        self._jobs: dict[int, TokenSequence] = {}  # admitted or waiting; with no worker up, all wait
        self._num_sequences = 0
        self._num_closed = 0
        self._num_jobs = 0
        self._num_reused = 0
        self._num_prefilled = 0

    # --- for the server (see base.Backend)

    @property
    def is_ready(self) -> bool:
        return self._link.is_up

    async def wait_ready(self) -> None:
        """Wait for the model. Raises BackendError with the reason when it could not be loaded."""
        await self._link.wait_up()

    @property
    def worker_pid(self) -> int | None:
        """The worker process, None between two of them."""
        return self._link.pid

    def load(self) -> Load:
        """What there is to do, and what has been done, now."""
        return Load(
            running=self._admission.num_running,
            waiting=len(self._jobs) - self._admission.num_running,
            paused=self._num_sequences - self._num_closed - len(self._jobs),
            kv_tokens=self._cache.num_tokens,
            tokens_reused=self._num_reused,
            tokens_prefilled=self._num_prefilled,
            tokens_evicted=self._cache.num_evicted,
        )

    def models(self) -> list[ModelInfo]:
        created = int((self._model.folder / "config.json").stat().st_mtime)
        return [ModelInfo(self._model.id, created)]

    def resolve(self, model: str | None) -> Route:
        if model not in (None, self._model.id):
            raise model_not_found(str(model))
        return Route(id=self._model.id)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return ()

    def open_sequence(self, spec: RunSpec) -> TokenSequence:
        """See base. Raises NotFound for another model, RequestError for what the prompt cannot hold."""
        self.resolve(spec.model)
        return self.new_sequence(self._make_prompt(spec), spec)

    def _sampling(self, spec: RunSpec) -> Sampling:
        return Sampling(
            temperature=self._model.temperature if spec.temperature is None else spec.temperature,
            top_p=self._model.top_p if spec.top_p is None else spec.top_p,
            seed=secrets.randbits(63) if spec.seed is None else spec.seed,
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
        )

    # --- for sequences (see token_sequence.Desk)

    def new_sequence(self, prompt: Prompt, spec: RunSpec) -> TokenSequence:
        self._num_sequences += 1
        return TokenSequence(
            self._num_sequences,
            spec,
            prompt,
            self._sampling(spec),
            window=self._model.context_window,
            stop_ids=self._model.stop_ids,
            desk=self,
        )

    def give(self, sequence: TokenSequence, ahead: Sequence[int] = ()) -> None:
        if self._link.is_up:
            self._link.send(self._synced(sequence, Use.PAUSED, ahead))

    def begin(self, sequence: TokenSequence) -> int:
        job = self._new_job(sequence)
        if self._link.is_up:
            self._admission.ask(job, len(sequence.tokens))
            self._admit()
        return job

    def stop(self, sequence: TokenSequence, job: int) -> None:
        if self._jobs.pop(job, None):
            self._cache.mark(sequence.number, Use.PAUSED)
            self._link.send([Stop(sequence.number, job)])
            self._ended(job)

    def retire(self, sequence: TokenSequence) -> None:
        self._num_closed += 1
        self._cache.forget(sequence.number)
        self._link.send(self._evicted())

    def take_lost(self, sequence: TokenSequence) -> int:
        return self._cache.take_lost(sequence.number)

    def _new_job(self, sequence: TokenSequence) -> int:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = sequence
        return self._num_jobs

    def _admit(self) -> None:
        for job in self._admission.admit():
            sequence = self._jobs[job]
            self._link.send([*self._synced(sequence, Use.RUNNING), sequence.ask(job)])

    def _ended(self, job: int) -> None:
        """A step is over; its KV may give way, and others may have its room."""
        self._admission.end(job)
        self._admit()
        self._link.send(self._evicted())

    def _send_back(self, job: int) -> None:
        """The step has to wait again, without its KV, as the next one to run."""
        sequence = self._jobs.pop(job)
        self._cache.evict_one(sequence.number)
        self._link.send([Stop(sequence.number, job), Drop(sequence.number)])
        again = self._new_job(sequence)
        sequence.on_asked(again)
        self._admission.ask_again(again, len(sequence.tokens))

    def _synced(self, sequence: TokenSequence, use: Use, ahead: Sequence[int] = ()) -> list[Command]:
        """What brings the worker's copy of a context up to date, with what will probably follow, within the budget."""
        number, tokens = sequence.number, sequence.tokens
        commands: list[Command] = []
        held = self._cache.held(number, ahead)
        if not held and (match := self._cache.match(number, tokens)):
            commands.append(Adopt(number, match.source, match.keep, match.move))
            held = match.keep
            if match.move:
                self._cache.drop(match.source)
        self._cache.put(number, tokens, len(tokens), use, ahead)
        commands += (dropped := self._evicted())
        if Drop(number) not in dropped:  # it does not fit beside those that sample, so it has to wait for its step
            commands.append(Extend(number, held, [*tokens.context_from(held), *ahead[max(0, held - len(tokens)) :]]))
        return commands

    def _evicted(self) -> list[Command]:
        return [Drop(number) for number in self._cache.evict()]

    # --- for the link (see worker_link.Owner)

    def worker_up(self, ready: Ready) -> None:
        """Begin all steps that are under way, oldest first."""
        max_tokens = self._max_kv_bytes // ready.kv_bytes_per_token
        self._cache.set_budget(max_tokens)
        self._admission.set_budget(max_tokens)
        self._begin_again(list(self._jobs))

    def worker_down(self, reason: str, *, was_up: bool) -> None:
        """Give up steps that have lost two workers; all of them when there was no worker to lose."""
        self._cache.clear()
        self._admission.clear()
        for job, sequence in list(self._jobs.items()):
            if not was_up or not sequence.on_lost():
                del self._jobs[job]
                what = "The model's worker ended." if was_up else "The model could not be loaded."
                sequence.on_failed(BackendError(what))

    def worker_said(self, report: Report) -> None:
        """A report of a job; of one that was stopped it comes too late."""
        match report:
            case Begun() if sequence := self._jobs.get(report.job):
                sequence.on_begun(report)
            case Sampled() if sequence := self._jobs.get(report.job):
                self._sampled(report, sequence)
            case Finished() if sequence := self._jobs.pop(report.job, None):
                self._num_reused += report.reused
                self._num_prefilled += report.prefilled
                # First: what gives way from here on is of the next step.
                sequence.on_finished(sequence.with_unseen(report))
                self._cache.mark(sequence.number, Use.PAUSED)
                self._ended(report.job)
            case Failed() if sequence := self._jobs.get(report.job):
                self._failed(report, sequence)

    def _sampled(self, report: Sampled, sequence: TokenSequence) -> None:
        sequence.on_sampled(report)
        if report.job in self._jobs:
            self._cache.put(sequence.number, sequence.tokens, len(sequence.tokens), Use.RUNNING)
            self._admission.grown(report.job, len(sequence.tokens))
            for job in self._admission.outgrown():
                self._send_back(job)
        else:  # it has stopped the job
            self._cache.put(sequence.number, sequence.tokens, len(sequence.tokens), Use.PAUSED)
        self._link.send(self._evicted())

    def _failed(self, report: Failed, sequence: TokenSequence) -> None:
        log.error("model worker: %s", report.message)
        if report.is_lost:
            self._cache.drop(sequence.number)
        if report.is_lost and sequence.on_lost():
            self._admission.end(report.job)
            self._begin_again([report.job])
        else:
            del self._jobs[report.job]
            self._cache.mark(sequence.number, Use.PAUSED)
            self._ended(report.job)
            sequence.on_failed(_error_of(report))

    def _begin_again(self, jobs: Sequence[int]) -> None:
        """New numbers: what the worker may still say of the old ones counts no more."""
        for job in jobs:
            sequence = self._jobs.pop(job)
            sequence.on_asked(self.begin(sequence))


@asynccontextmanager
async def open_local_backend(
    model: LocalModel,
    make_prompt: Callable[[RunSpec], Prompt],
    *,
    max_kv_bytes: int,
    dtype: Literal["auto", "bfloat16", "float32"] = "auto",
    threads: int = 0,
    device: str = "auto",
    max_step_ms: int = 250,
    worker: Sequence[str] = (sys.executable, "-m", "engine.backends.worker"),
    progress: Progress = lambda what, fraction: None,
) -> AsyncIterator[LocalBackend]:
    """The backend, at once; the worker loads the model meanwhile, and steps wait for it.

    make_prompt: the prompt of a run. max_kv_bytes: KV of paused and ended runs gives way beyond this. dtype, threads,
    device: the worker finds out what is `auto`, or 0. max_step_ms: how long a step that takes prompts in may be, about.
    worker: the command that becomes one, given folder and options. progress: what is being done, and the fraction done,
    0 to 1.
    """
    argv = [*worker, str(model.folder), "--device", device, "--dtype", dtype, "--threads", str(threads)]
    argv += ["--max-step-ms", str(max_step_ms)]
    argv += ["--stop-ids", *map(str, model.stop_ids)]
    link = WorkerLink(argv, progress, Ready, ReportReader)
    backend = LocalBackend(model, make_prompt, link, max_kv_bytes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, backend)
        yield backend
        nursery.cancel_scope.cancel()


def _error_of(report: Failed) -> EngineError:
    if report.by_grammar:
        return RequestError(
            "The model cannot be held to what is asked for (a tool's parameters or grammar, or text.format): "
            "nothing that it could write fits, or it is too complex."
        )
    return BackendError("The model could not go on with this step.")
