"""The chat route as a Backend: the service renders, samples and parses; messages go there and deltas come back.

For services and models whose tokenizer is not at hand. Each step is a task; each run has a connection, which it keeps
while it is paused.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from engine.backends.base import ModelInfo, Route, RunSpec, model_not_found
from engine.backends.rate_limit import RateLimit
from engine.backends.remote.chat_request import ChatDialect
from engine.backends.remote.chat_sequence import ChatSequence
from engine.backends.remote.lines import Lines, open_lines
from engine.backends.remote.link import Line, Link


class ChatBackend:
    """A Backend (see base) over a service's chat completions. Made by `open_chat_backend`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        lines: Lines,
        link: Link,
        dialect: ChatDialect,
        models: Sequence[ModelInfo],
        window: int | None,
    ) -> None:
        self._nursery = nursery
        self._link = link
        self._dialect = dialect
        self._models = {model.id: model for model in models}
        self._window_of = {models[0].id: window}
        self._lines = lines

    # --- for the server (see base.Backend)

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_ready(self) -> None:
        """It was tried when it was opened."""
        await trio.lowlevel.checkpoint()

    def models(self) -> list[ModelInfo]:
        return list(self._models.values())

    def resolve(self, model: str | None) -> Route:
        if model is not None and model not in self._models:
            raise model_not_found(model)
        return Route(id=model or next(iter(self._models)))

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return self._link.rate_limits

    def open_sequence(self, spec: RunSpec) -> ChatSequence:
        """See base. Raises NotFound for a model that is not the service's."""
        self.resolve(spec.model)
        return ChatSequence(spec, self._dialect, self, self._window_of.get(spec.model))

    # --- for sequences (see chat_sequence.Desk)

    def take_line(self) -> Line:
        return self._lines.take()

    def give_back(self, line: Line) -> None:
        self._lines.give_back(line)

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(work)


@asynccontextmanager
async def open_chat_backend(
    link: Link, dialect: ChatDialect, models: Sequence[ModelInfo], window: int | None = None
) -> AsyncIterator[ChatBackend]:
    """The backend. models: of the service, at least one; the first is the default, and window is its context's."""
    async with open_lines(link, dialect.warm_path) as (lines, nursery):
        yield ChatBackend(nursery, lines, link, dialect, models, window)
