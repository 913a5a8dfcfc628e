"""A service is tried before it is used: the key, the model, and on the raw route what only asking can tell.

Each failure becomes one sentence for whoever starts the server.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from engine.backends.base import ModelInfo
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.dialect import Ask, Dialect
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.errors import Unreachable, UpstreamError
from engine.backends.remote.link import Line
from engine.backends.remote.services import NotThere, NotUsable, Service

_SAMPLE: Final = "Grüße, 北京! 3.14 <b>\n\tfor (x) { y; }"
_MAX_LISTED: Final = 12


class _Listed(msgspec.Struct):
    id: str
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None


class _List(msgspec.Struct):
    data: list[_Listed]


class _Settings(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Settings


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Found(msgspec.Struct, frozen=True):
    """What a service has. models: the one that is wanted first. window: of that one; None where it does not say.

    is_listed: it has a list of models, and the wanted one is not just believed to be there.
    """

    models: list[ModelInfo]
    window: int | None = None
    is_listed: bool = True


async def find_models(line: Line, service: Service, url: str, wanted: str, *, is_chosen: bool) -> Found:
    """The service's models. Raises NotUsable: it cannot be reached, refuses the key, or has not got the model.

    is_chosen: the model was named; else the only one that the service has is meant.
    """
    is_listed = True
    try:
        listed = msgspec.json.decode(await line.get("/models"), type=_List).data
    except msgspec.DecodeError as error:
        raise NotUsable(f"What answers at {url} is not {service.title}: it has no list of models.") from error
    except UpstreamError as error:
        if error.upstream_status != 404:
            raise _said(error, service, url) from error
        listed, is_listed = [_Listed(wanted)], False  # some proxies have no list
    if service.key_variable == "LLAMA_API_KEY":  # it has one model, and takes any name for it
        window = await _window_of_props(line)
        return Found([ModelInfo(wanted, listed[0].created if listed else 0, service.title)], window, is_listed)
    if not is_chosen and len(listed) == 1:
        wanted = listed[0].id
    listed.sort(key=lambda one: one.id != wanted)
    if not listed or listed[0].id != wanted:
        names = ", ".join(one.id for one in listed[:_MAX_LISTED]) + (", …" if len(listed) > _MAX_LISTED else "")
        raise NotUsable(f"{service.title} at {url} has no model '{wanted}'; it has: {names or 'none'}.")
    models = [ModelInfo(one.id, one.created, one.owned_by or service.title) for one in listed]
    return Found(models, listed[0].max_model_len, is_listed)


async def _window_of_props(line: Line) -> int | None:
    try:
        return msgspec.json.decode(await line.get("^/props"), type=_Props).default_generation_settings.n_ctx
    except (UpstreamError, msgspec.DecodeError):
        return None  # it may be switched off


async def try_chat(line: Line, service: Service, url: str, model: str) -> None:
    """Ask nothing, which a service refuses. Raises NotUsable when nobody is there to refuse it."""
    trial = _Trial("/chat/completions", {"model": model, "messages": [], "max_tokens": 1}, None)
    try:
        await line.converse(trial)
    except UpstreamError as error:
        if error.upstream_status == 404:
            raise NotUsable(
                f"What answers at {url} has neither a list of models nor chat completions of '{model}' (404): "
                "the address or the model is wrong."
            ) from error
        if error.upstream_status in (401, 403):
            raise _said(error, service, url) from error
        # Whatever else it says of such a question, it is there.


async def try_ids(line: Line, dialect: Dialect, service: Service, url: str, model: str, form: PromptFormat) -> None:
    """Sample one token. Raises NotUsable when the service gives no ids, or encodes text in another way than `form`."""
    fields = dialect.fields(Ask(model=model, max_tokens=1))
    trial = _Trial(dialect.path, fields | {"prompt": form.header_ids}, dialect)
    try:
        await line.converse(trial)
    except UpstreamError as error:
        raise _said(error, service, url) from error
    if not trial.num_taken:
        raise NotUsable(
            f"{service.title} at {url} gives no token ids ({dialect.wants_ids_by}), which the raw route needs; "
            "leave --tokenizer out to use the chat route."
        )
    await _compare_tokenizers(line, dialect, service, url, model, form)


async def _compare_tokenizers(
    line: Line, dialect: Dialect, service: Service, url: str, model: str, form: PromptFormat
) -> None:
    fields = dialect.tokenize_fields(model, _SAMPLE)
    if fields is None:
        return
    trial = _Trial("^/tokenize", fields, None)
    try:
        await line.converse(trial)
    except UpstreamError:
        return  # not every version can be asked
    if trial.tokens and trial.tokens != form.vocabulary.encode(_SAMPLE):
        raise NotUsable(
            f"The tokenizer of {form.model_id} is not that of '{model}' at {url}: "
            "they encode the same text differently."
        )


def _said(error: UpstreamError, service: Service, url: str) -> NotUsable:
    if isinstance(error, Unreachable):
        return NotThere(f"{service.title} cannot be reached at {url} ({error.detail}).")
    if error.upstream_status in (401, 403):
        return NotUsable(
            f"{service.title} at {url} refuses the key ({error.upstream_status}); "
            f"it is read from {service.key_variable}, or from the file that key_file names."
        )
    # What may pass is so said, such as a 503 while it loads its model.
    kind = NotThere if error.is_retryable else NotUsable
    return kind(f"{service.title} at {url} does not do what it is asked ({error.detail}).")


def _tokens_in(answer: bytes) -> list[int]:
    try:
        return msgspec.json.decode(answer, type=_Tokens).tokens
    except msgspec.DecodeError as error:
        raise UpstreamError("The model's service does not tell its tokens.", detail=str(error)) from error


class _Trial:
    """A `link.Turn` of one question. dialect: of a sampled answer; None for one with `tokens`."""

    can_repeat = True

    def __init__(self, path: str, fields: dict[str, Any], dialect: Dialect | None) -> None:
        self.path = path
        self.tokens: list[int] = []
        self.is_answered = False
        self._fields = fields
        self._dialect = dialect

    @property
    def num_taken(self) -> int:
        return len(self.tokens)

    async def body(self, encoding: Encoding) -> bytes:
        return encoding.encode(self._fields)

    def take(self, events: Sequence[bytes]) -> bool:
        for event in events:
            if self._dialect is None:
                self.tokens = _tokens_in(event)
                self.is_answered = True
            else:
                chunk = self._dialect.read(event)
                self.tokens += chunk.ids
                self.is_answered = self.is_answered or chunk.is_last or chunk.end is not None
        return self.is_answered
