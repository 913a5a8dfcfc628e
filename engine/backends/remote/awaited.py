"""A service that is not there when the server starts: asked for again and again, and used from when it is.

Only what may pass is waited for. A setting that is wrong (a key, a model, an address) keeps the server from starting,
as it would if the service were there; when that is only seen later, it is in the log, and asked for again like the
rest.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from engine.backends.base import Backend, ModelInfo, Route, RunSpec, Sequence, model_unavailable
from engine.backends.rate_limit import RateLimit
from engine.backends.remote.services import NotThere
from engine.errors import BackendError
from engine.settings import Settings

log = logging.getLogger(__name__)

Opening = AbstractAsyncContextManager[Backend]
Ask = Callable[[], Awaitable[Opening]]


class AwaitedBackend:
    """A Backend (see base) that takes no runs until its service is there; from then on it is that service's."""

    def __init__(self, model: ModelInfo) -> None:
        """model: what stands for the service's models until it can be asked for them."""
        self._model = model
        self._inner: Backend | None = None
        self._is_there = trio.Event()

    @property
    def is_ready(self) -> bool:
        return self._inner is not None and self._inner.is_ready

    async def wait_ready(self) -> None:
        await self._is_there.wait()
        assert self._inner is not None
        await self._inner.wait_ready()

    def models(self) -> list[ModelInfo]:
        return [self._model] if self._inner is None else self._inner.models()

    def resolve(self, model: str | None) -> Route:
        """See base. Raises BackendError for a model that the service might have."""
        if self._inner is not None:
            return self._inner.resolve(model)
        if model not in (None, self._model.id):
            raise model_unavailable(str(model))
        return Route(id=self._model.id)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return () if self._inner is None else self._inner.rate_limits(model)

    def open_sequence(self, spec: RunSpec) -> Sequence:
        if self._inner is None:
            raise model_unavailable(spec.model)
        return self._inner.open_sequence(spec)

    async def run(self, ask: Ask, waits: Iterator[float], said: str) -> None:
        """Ask until it is there, and hold it open; never returns.

        waits: seconds, one before each time. said: what has been wrong so far.
        """
        async with await _ask_again(ask, waits, said) as self._inner:
            log.info("the service of %s is there now", self._model.id)
            self._is_there.set()
            await trio.sleep_forever()


@asynccontextmanager
async def open_awaited(ask: Ask, model: ModelInfo, settings: Settings) -> AsyncIterator[Backend]:
    """The backend, or what waits for its service. model: see AwaitedBackend. Raises as `ask` does, but no NotThere."""
    opening = await _ask_once(ask, settings.upstream_connect_s)
    if not isinstance(opening, str):
        async with opening as backend:
            yield backend
        return
    log.warning("%s It is asked again until it is there.", opening)
    awaited = AwaitedBackend(model)
    async with trio.open_nursery() as nursery:
        waits = growing_waits(settings.upstream_retry_s, settings.max_upstream_retry_s)
        nursery.start_soon(awaited.run, ask, waits, opening)
        yield awaited
        nursery.cancel_scope.cancel("the backend closes")


async def _ask_once(ask: Ask, limit_s: float) -> Opening | str:
    """The opening; what is wrong when the service is not there, or lets others wait for longer than this."""
    with trio.move_on_after(limit_s):
        try:
            return await ask()
        except NotThere as error:
            return error.message
    return f"A service has not answered in {limit_s:g} s."


async def _ask_again(ask: Ask, waits: Iterator[float], said: str) -> Opening:
    while True:
        await trio.sleep(next(waits))
        try:
            return await ask()
        except BackendError as error:
            if error.message != said:
                log.warning("%s", error.message)
            said = error.message


def growing_waits(first_s: float, max_s: float) -> Iterator[float]:
    """Seconds, each twice the one before, up to `max_s`."""
    wait_s = min(first_s, max_s)
    while True:
        yield wait_s
        wait_s = min(wait_s * 2, max_s)
