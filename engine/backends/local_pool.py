"""Several workers with the same model, one for each GPU, as one Backend.

A run stays with the worker that it began on, and so do its forks, since its KV is there. A new one goes to the worker
that has the fewest to do.
"""

from collections.abc import Sequence

from engine.backends.base import ModelInfo, Route, RunSpec
from engine.backends.local import Load, LocalBackend
from engine.backends.rate_limit import RateLimit
from engine.backends.token_sequence import TokenSequence


class LocalPool:
    """See base.Backend. The backends are opened and closed by who made it."""

    def __init__(self, backends: Sequence[LocalBackend]) -> None:
        """backends: at least one, over the same model."""
        self._backends = list(backends)

    @property
    def is_ready(self) -> bool:
        return all(backend.is_ready for backend in self._backends)

    async def wait_ready(self) -> None:
        for backend in self._backends:
            await backend.wait_ready()

    def models(self) -> list[ModelInfo]:
        return self._backends[0].models()

    def resolve(self, model: str | None) -> Route:
        return self._backends[0].resolve(model)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return ()

    def open_sequence(self, spec: RunSpec) -> TokenSequence:
        return min(self._backends, key=_busyness).open_sequence(spec)

    def load(self) -> Load:
        """Of all together."""
        loads = [backend.load() for backend in self._backends]
        return Load(**{name: sum(getattr(load, name) for load in loads) for name in Load.__struct_fields__})


def _busyness(backend: LocalBackend) -> tuple[int, int]:
    """Who samples comes first, since that is what others wait for; then who will come back."""
    load = backend.load()
    return load.running + load.waiting, load.paused
