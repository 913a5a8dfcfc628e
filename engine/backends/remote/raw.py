"""The raw route as a Backend: we render and parse, the service samples; token ids go there and come back.

`token_sequence` knows a run, `raw_turn` a step on the service, `link` the way there. This file joins them: each step is
a task, and each run has a connection, which it keeps while it is paused.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from engine.backends.base import ModelInfo, Route, RunSpec, model_not_found
from engine.backends.prompt import PromptFormat
from engine.backends.rate_limit import RateLimit
from engine.backends.remote.dialect import Dialect
from engine.backends.remote.errors import UpstreamError
from engine.backends.remote.lines import Lines, open_lines
from engine.backends.remote.link import Line, Link
from engine.backends.remote.raw_prompt import RawPrompt
from engine.backends.remote.raw_turn import RawTurn
from engine.backends.token_sequence import Prompt, Sampling, TokenSequence
from engine.errors import BackendError

log = logging.getLogger(__name__)


class RawModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the service has it. created: seconds since the epoch."""

    id: str
    created: int
    owned_by: str


class RawBackend:
    """A Backend (see base) over a service that takes token ids. Made by `open_raw_backend`."""

    def __init__(
        self, nursery: trio.Nursery, lines: Lines, link: Link, dialect: Dialect, model: RawModel, form: PromptFormat
    ) -> None:
        self._nursery = nursery
        self._link = link
        self._dialect = dialect
        self._model = model
        self._form = form
        self._lines = lines
        self._line_of: dict[int, Line] = {}  # by the sequence's number
        self._jobs: dict[int, trio.CancelScope] = {}
        self._num_sequences = 0
        self._num_jobs = 0

    # --- for the server (see base.Backend)

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_ready(self) -> None:
        """It was tried when it was opened."""
        await trio.lowlevel.checkpoint()

    def models(self) -> list[ModelInfo]:
        return [ModelInfo(self._model.id, self._model.created, self._model.owned_by)]

    def resolve(self, model: str | None) -> Route:
        if model not in (None, self._model.id):
            raise model_not_found(str(model))
        return Route(id=self._model.id)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return self._link.rate_limits

    def open_sequence(self, spec: RunSpec) -> TokenSequence:
        """See base. Raises NotFound for another model, RequestError for what the service cannot do."""
        self.resolve(spec.model)
        return self.new_sequence(RawPrompt(self._form, self._dialect, spec), spec)

    # --- for sequences (see token_sequence.Desk)

    def new_sequence(self, prompt: Prompt, spec: RunSpec) -> TokenSequence:
        self._num_sequences += 1
        number = self._num_sequences
        self._line_of[number] = self._lines.take()
        # What the run does not say is the service's to choose, so these two are never looked at.
        sampling = Sampling(temperature=0.0, top_p=1.0, seed=0)
        return TokenSequence(
            number,
            spec,
            prompt,
            sampling,
            window=self._form.context_window,
            stop_ids=sorted(self._form.stop_ids),
            desk=self,
        )

    def give(self, sequence: TokenSequence, ahead: Sequence[int] = ()) -> None:
        """The service gets the context with the next step; it keeps what it knows of it by itself."""

    def begin(self, sequence: TokenSequence) -> int:
        self._num_jobs += 1
        scope = self._jobs[self._num_jobs] = trio.CancelScope()
        self._nursery.start_soon(self._run, self._num_jobs, sequence, scope)
        return self._num_jobs

    def stop(self, sequence: TokenSequence, job: int) -> None:
        if scope := self._jobs.pop(job, None):
            scope.cancel()

    def retire(self, sequence: TokenSequence) -> None:
        self._lines.give_back(self._line_of.pop(sequence.number))

    def take_lost(self, sequence: TokenSequence) -> int:
        return 0  # what the service keeps of a context is its own business

    # --- a step

    async def _run(self, job: int, sequence: TokenSequence, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await trio.lowlevel.checkpoint()  # it may have been stopped before it began
                await self._sample(job, sequence)
            except UpstreamError as error:
                self._failed(job, sequence, error)
            except Exception:
                log.exception("a step on the model's service failed")
                self._failed(job, sequence, BackendError("The model could not go on with this step."))
            finally:
                self._jobs.pop(job, None)

    async def _sample(self, job: int, sequence: TokenSequence) -> None:
        line, prompt = self._line_of[sequence.number], sequence.prompt
        assert isinstance(prompt, RawPrompt)
        turn = RawTurn(job, sequence, prompt, self._dialect, sequence.spec, lambda: job in self._jobs)
        await line.converse(turn)
        turn.finish()

    def _failed(self, job: int, sequence: TokenSequence, error: BackendError) -> None:
        if self._jobs.pop(job, None):
            sequence.on_failed(error)


@asynccontextmanager
async def open_raw_backend(
    link: Link, dialect: Dialect, model: RawModel, form: PromptFormat
) -> AsyncIterator[RawBackend]:
    """The backend. form: of the model's own tokenizer and template, its context window what the service gives."""
    async with open_lines(link, dialect.warm_path) as (lines, nursery):
        yield RawBackend(nursery, lines, link, dialect, model, form)
