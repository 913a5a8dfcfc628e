"""Which backend the settings mean, made ready to open."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from engine.backends.base import Backend
from engine.backends.local import LocalModel, open_local_backend
from engine.backends.local_pool import LocalPool
from engine.backends.pretrained import resolve, tokenizer_folder
from engine.backends.prompt import Prompt
from engine.backends.prompt_format import PromptFormat
from engine.backends.router import open_router
from engine.backends.scenario import resolve_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext, UncachedContext
from engine.errors import RequestError
from engine.settings import REMOTE, Settings

Progress = Callable[[str, float], None]  # what is being done, and the fraction done
_UNLIMITED = 1 << 40  # tokens; a script computes nothing, so no context is too long for it


def choose_backend(
    settings: Settings, progress: Progress, *, awaits: bool = False
) -> AbstractAsyncContextManager[Backend]:
    """The backend that the settings name: all of `settings.models` as one or, without those, `settings.backend`.

    Raises as `_choose_one` does; with several, when they are opened.
    """
    if settings.models:
        return open_router(settings, partial(_choose_one, progress=progress, awaits=awaits))
    return _choose_one(settings, progress, awaits)


def _choose_one(settings: Settings, progress: Progress, awaits: bool) -> AbstractAsyncContextManager[Backend]:
    """The backend that `settings.backend` names: `local`, a service, or `script:` and a scenario's name or file.

    awaits: a service that is not there is waited for. Raises RequestError for another name, ScenarioError for a
    scenario that is wrong; opening it raises ModelNotAvailable for a model that cannot be had, NotUsable for a service.
    """
    kind, _, rest = settings.backend.partition(":")
    if kind == "script":
        if not rest:
            raise RequestError("Which script? Name a scenario, such as script:demo.", param="backend")
        return _script(rest, settings, progress)
    if settings.backend == "local":
        return _open_local(settings, progress)
    if settings.backend in REMOTE:
        # Here, because the HTTP client takes a tenth of a second that a server without a service need not wait for.
        from engine.backends.remote.opening import open_remote_backend

        return open_remote_backend(settings, progress, awaits=awaits)
    known = ", ".join(("local", "script:SCENARIO", *REMOTE))
    raise RequestError(f"Unknown backend '{settings.backend}'. Known: {known}.", param="backend")


def _script(scenario: str, settings: Settings, progress: Progress) -> ScriptBackend:
    scenarios = [resolve_scenario(scenario)]
    if not settings.tokenizer:
        return ScriptBackend(scenarios)
    folder = tokenizer_folder(progress) if settings.tokenizer == "default" else Path(settings.tokenizer)
    form = PromptFormat.load(folder, context_window=_UNLIMITED, family=settings.family)
    return ScriptBackend(scenarios, partial(PromptContext if settings.token_cache else UncachedContext, form))


@asynccontextmanager
async def _open_local(settings: Settings, progress: Progress) -> AsyncIterator[Backend]:
    folder = await trio.to_thread.run_sync(resolve, settings.model, progress)
    form = await trio.to_thread.run_sync(partial(PromptFormat.load, folder, family=settings.family))
    model = LocalModel(
        folder=folder, id=form.model_id, context_window=form.context_window, stop_ids=form.stops_in_order
    )
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(
                open_local_backend(
                    model,
                    partial(Prompt, form),
                    max_kv_bytes=settings.max_kv_bytes,
                    device=device,
                    dtype=settings.dtype,
                    threads=settings.threads,
                    max_step_ms=settings.max_step_ms,
                    progress=progress,
                )
            )
            for device in settings.device.split(",")
        ]
        yield backends[0] if len(backends) == 1 else LocalPool(backends)
