"""Several backends as one: each model by a name of its own, as the settings say, which may be read again.

A table of models is replaced as a whole, once every backend that it needs is ready; until then, and when one cannot be
had, the one before it stays. A backend that no model needs any more is closed when its last sequence is.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from engine.backends.base import Backend, ModelInfo, Route, RunSpec, model_not_found, model_unavailable
from engine.backends.rate_limit import RateLimit
from engine.backends.routed_sequence import RoutedSequence
from engine.errors import BackendError
from engine.routing import RouteTable, table_of
from engine.settings import OF_A_BACKEND, Settings

OpenBackend = Callable[[Settings], AbstractAsyncContextManager[Backend]]
_Key = tuple[Any, ...]  # what is opened by the same settings is the same


@dataclass(eq=False)
class _Held:
    """An open backend, and what keeps it open; its first model is the one that it is used for."""

    backend: Backend
    num_open: int = 0
    is_needed: bool = True
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def model(self) -> ModelInfo:
        return self.backend.models()[0]

    @property
    def is_unavailable(self) -> bool:
        return bool(self.model.unavailable)

    def take(self) -> None:
        self.num_open += 1

    def give_back(self) -> None:
        self.num_open -= 1
        self._close_if_over()

    def retire(self) -> None:
        """No model needs it any more."""
        self.is_needed = False
        self._close_if_over()

    def _close_if_over(self) -> None:
        if not (self.is_needed or self.num_open):
            self.over.set()


@asynccontextmanager
async def open_router(settings: Settings, open_backend: OpenBackend) -> AsyncIterator["Router"]:
    """A backend with the models of the settings; those of its backends that load a model do so meanwhile.

    open_backend: is called in a thread. Raises what `Router.load` raises.
    """
    async with trio.open_nursery() as nursery:
        router = Router(open_backend, nursery)
        await router.load(settings, waits=False)
        yield router
        router.close()


class Router:
    """See the module."""

    def __init__(self, open_backend: OpenBackend, nursery: trio.Nursery) -> None:
        self._open_backend = open_backend
        self._nursery = nursery
        self._loading = trio.Lock()
        self._open: set[_Held] = set()
        self._held: dict[_Key, _Held] = {}  # those that are needed
        self._table = RouteTable({})
        self._backends: dict[str, _Held] = {}  # by the ids in the table

    async def load(self, settings: Settings, *, waits: bool = True) -> None:
        """Serve the models of these settings from now on. waits: until all of their backends are ready.

        Raises ValueError, and what opening a backend raises or waiting for it; nothing has changed then.
        """
        table = table_of(settings)
        wanted = {route.id: settings.of_model(name) for name, route in zip(settings.models, table.routes, strict=True)}
        async with self._loading:
            fresh: dict[_Key, _Held] = {}
            try:
                for of_model in wanted.values():
                    if (key := _key(of_model)) not in self._held | fresh:
                        fresh[key] = await self._nursery.start(self._hold, of_model)
                if waits:
                    await _wait_all(fresh.values())
            except BaseException:
                _retire(fresh.values())
                raise
            before, held = self._held, self._held | fresh
            self._table = table
            self._backends = {model_id: held[_key(of_model)] for model_id, of_model in wanted.items()}
            self._held = {key: held[key] for key in map(_key, wanted.values())}
            _retire(one for key, one in before.items() if key not in self._held)

    async def _hold(self, settings: Settings, *, task_status: trio.TaskStatus[_Held]) -> None:
        async with await trio.to_thread.run_sync(self._open_backend, settings) as backend:
            held = _Held(backend)
            self._open.add(held)
            task_status.started(held)
            await held.over.wait()
            self._open.discard(held)

    def close(self) -> None:
        """Close every backend, whatever still uses it."""
        for one in self._open:
            one.over.set()

    # --- as a backend

    @property
    def is_ready(self) -> bool:
        """Whether runs are sampled at once; one whose service is not there is none, unless there is no other."""
        available = self._available()
        return bool(available) and all(one.backend.is_ready for one in available)

    async def wait_ready(self) -> None:
        if not self._available():
            await _wait_any(list(self._backends.values()))
        for one in self._available():
            await one.backend.wait_ready()

    def _available(self) -> list[_Held]:
        return [one for one in self._backends.values() if not one.is_unavailable]

    def models(self) -> list[ModelInfo]:
        return [msgspec.structs.replace(one.model, id=model_id) for model_id, one in self._backends.items()]

    def resolve(self, model: str | None) -> Route:
        return self._table.resolve(model)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        held = self._backends.get(model)
        return () if held is None else held.backend.rate_limits(held.model.id)

    def open_sequence(self, spec: RunSpec) -> RoutedSequence:
        """See base. What its backend calls the model is the backend's own business."""
        held = self._backends.get(spec.model)
        if held is None:
            raise model_not_found(spec.model)
        if held.is_unavailable:
            raise model_unavailable(spec.model)
        return RoutedSequence(held.backend.open_sequence(msgspec.structs.replace(spec, model=held.model.id)), held)


async def _wait_all(backends: Iterable[_Held]) -> None:
    """Wait until all are ready. Raises BackendError for one that is not, and will not soon be."""
    for one in backends:
        if one.is_unavailable:
            raise BackendError(f"{one.model.id} is not available: {one.model.unavailable}")
        await one.backend.wait_ready()


async def _wait_any(backends: Iterable[_Held]) -> None:
    async with trio.open_nursery() as nursery:
        for one in backends:
            nursery.start_soon(_wait_and_cancel, one.backend, nursery.cancel_scope)


async def _wait_and_cancel(backend: Backend, others: trio.CancelScope) -> None:
    await backend.wait_ready()
    others.cancel("one is ready")


def _key(settings: Settings) -> _Key:
    return tuple(getattr(settings, name) for name in OF_A_BACKEND)


def _retire(backends: Iterable[_Held]) -> None:
    for one in backends:
        one.retire()
