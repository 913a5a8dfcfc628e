"""A service as a Backend, from the settings: tried, perhaps until it is there, then opened on the route that they mean.

With a tokenizer it is the raw route, on which token ids go both ways; without one the chat route, on which the service
renders and parses.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import cast

import trio

from engine.backends.base import Backend, ModelInfo
from engine.backends.pretrained import DEFAULT_MODEL, resolve_tokenizer
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.awaited import open_awaited
from engine.backends.remote.chat import open_chat_backend
from engine.backends.remote.chat_request import DIALECTS, ChatName
from engine.backends.remote.dialect import Dialect
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.raw import RawModel, open_raw_backend
from engine.backends.remote.services import SERVICES, NotUsable, Service, base_url_of, read_key
from engine.backends.remote.trial import Found, find_models, try_chat, try_ids
from engine.settings import Settings

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
_ROUTE_NAMES = {True: "raw", False: "chat"}


@asynccontextmanager
async def open_remote_backend(
    settings: Settings, progress: Progress, *, awaits: bool = False
) -> AsyncIterator[Backend]:
    """The backend of a setting such as `cerebras`. Raises NotUsable, ModelNotAvailable for the tokenizer.

    awaits: take a service that is not there for one that will be, and its models for unavailable until then.
    """
    service = SERVICES[settings.backend]
    url = base_url_of(service, settings.base_url)
    link = link_of(settings, service, url)
    dialect = dialect_of(settings.backend) if settings.tokenizer else None
    form = None if dialect is None else await _load_format(settings, progress)
    progress(f"Asking {service.title} at {url}", 0.0)
    ask = partial(_ask, settings, service, url, link, dialect, form)
    name = settings.model if _is_chosen(settings) else settings.backend
    stand_in = ModelInfo(name, 0, service.title, unavailable="its service is not there")
    async with open_awaited(ask, stand_in, settings) if awaits else await ask() as backend:
        yield backend


def _is_chosen(settings: Settings) -> bool:
    """Whether the service's model was named; else the only one that it has is meant."""
    return settings.model != DEFAULT_MODEL


async def _ask(
    settings: Settings, service: Service, url: str, link: Link, dialect: Dialect | None, form: PromptFormat | None
) -> AbstractAsyncContextManager[Backend]:
    """Try the service. What it is to be opened by."""
    line = link.new_line()
    try:
        found = await find_models(line, service, url, settings.model, is_chosen=_is_chosen(settings))
        model = found.models[0].id
        if dialect is None and not found.is_listed:
            await try_chat(line, service, url, model)
        if dialect is not None and form is not None:
            # What a server computes with decides, and not what the tokenizer's model once could.
            form.context_window = settings.context_window or found.window or form.context_window
            await try_ids(line, dialect, service, url, model, form)
    finally:
        await line.aclose()
    log.info("%s at %s: %s, %s route", service.title, url, model, _ROUTE_NAMES[dialect is not None])
    return _open(settings, link, found, dialect, form)


def _open(
    settings: Settings, link: Link, found: Found, dialect: Dialect | None, form: PromptFormat | None
) -> AbstractAsyncContextManager[Backend]:
    if dialect is None or form is None:
        return open_chat_backend(link, DIALECTS[cast(ChatName, settings.backend)], found.models, found.window)
    first = found.models[0]
    model = RawModel(id=first.id, created=first.created, owned_by=first.owned_by)
    return open_raw_backend(link, dialect, model, form)


async def _load_format(settings: Settings, progress: Progress) -> PromptFormat:
    """The model's own format; its context is as long as the model's own."""
    folder = await trio.to_thread.run_sync(resolve_tokenizer, settings.tokenizer, progress)
    return await trio.to_thread.run_sync(partial(PromptFormat.load, folder, family=settings.family))


def link_of(settings: Settings, service: Service, url: str) -> Link:
    """The way to a service at this address. Raises NotUsable for a key that is missing or cannot be one."""
    # Others refuse what they do not know, and are near enough for plain JSON.
    best = Encoding(msgpack=settings.upstream_msgpack, gzip=settings.upstream_gzip)
    try:
        return Link(
            LinkConfig(
                base_url=url,
                key=read_key(service, settings.base_url, settings.key_file),
                encoding=best if settings.backend == "cerebras" else PLAIN,
                connect_s=settings.upstream_connect_s,
                first_token_s=settings.upstream_first_token_s,
                between_tokens_s=settings.upstream_between_tokens_s,
                total_s=settings.upstream_total_s,
                max_idle_s=settings.upstream_idle_s,
                retries=settings.upstream_retries,
                max_wait_s=settings.upstream_max_wait_s,
                max_event_bytes=settings.max_upstream_event_bytes,
            )
        )
    except ValueError as error:
        raise NotUsable(str(error)) from error
