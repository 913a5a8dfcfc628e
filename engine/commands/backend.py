"""Which backend a setting means."""

from contextlib import AbstractAsyncContextManager

from rich.console import Console

from engine.backends.base import Backend
from engine.backends.script import open_script_backend
from engine.errors import RequestError
from engine.settings import Settings


def choose_backend(settings: Settings, console: Console) -> AbstractAsyncContextManager[Backend]:
    """The backend that `settings.backend` names: `local`, or `script:` and a scenario's name or file.

    Raises RequestError for another name, ScenarioError for a scenario that is wrong.
    """
    kind, _, rest = settings.backend.partition(":")
    if kind == "script":
        return open_script_backend(rest or "demo", tokenizer=settings.tokenizer)
    raise RequestError(f"Unknown backend '{settings.backend}'. Known: local, script:SCENARIO.", param="backend")
