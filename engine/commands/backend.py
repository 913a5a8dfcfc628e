"""Which backend a setting means."""

from contextlib import AbstractAsyncContextManager

from engine.backends.base import Backend
from engine.backends.scenario import resolve_scenario
from engine.backends.script import ScriptBackend
from engine.errors import RequestError
from engine.settings import Settings


def choose_backend(settings: Settings) -> AbstractAsyncContextManager[Backend]:
    """The backend that `settings.backend` names: `local`, or `script:` and a scenario's name or file.

    Raises RequestError for another name, ScenarioError for a scenario that is wrong.
    """
    kind, _, rest = settings.backend.partition(":")
    if kind == "script":
        return ScriptBackend([resolve_scenario(rest or "demo")])
    raise RequestError(f"Unknown backend '{settings.backend}'. Known: local, script:SCENARIO.", param="backend")
