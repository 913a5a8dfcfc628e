"""How the servers that take and give token ids want to be asked, and what they answer.

| | Cerebras | vLLM | llama.cpp |
|---|---|---|---|
| path | /v1/completions | /v1/completions | /completion |
| ids wanted by | return_raw_tokens | return_token_ids | return_tokens |
| ids come as | choices[0].tokens | choices[0].token_ids | tokens |
| the end | finish_reason, usage, [DONE] | finish_reason, usage, [DONE] | stop |
| reused tokens | usage | usage, with --enable-prompt-tokens-details | timings |
"""

from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from engine.backends.chance import Chance
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import BrokenStream, error_chunk

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
End = Literal["stop", "length", "content_filter"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for besides the prompt. None: the service's default.

    cache_key: the same for what shares a prefix. schema: that the text is held to. top_logprobs: how many of the
    likeliest to tell with each id; None for no log-probabilities.
    """

    model: str
    max_tokens: int
    stop_ids: list[int] = []
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    cache_key: str | None = None
    schema: dict[str, Any] | None = None
    top_logprobs: int | None = None


class Times(msgspec.Struct, frozen=True):
    """The service's own account of a turn, in milliseconds."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    sampling_ms: float = 0.0


class Chunk(msgspec.Struct, frozen=True):
    """What an event says. num_cached: tokens of the prompt that were not computed again. is_last: nothing follows.

    num_told: how many ids there must be by now; None where the service does not count. chances: one for each id, where
    they were asked for and the service tells them by id (llama.cpp's tells none of ids that end inside a character).
    """

    ids: list[int] = []
    chances: list[Chance] | None = None
    end: End | None = None
    num_cached: int | None = None
    times: Times | None = None
    is_last: bool = False
    num_told: int | None = None


class Dialect(Protocol):
    """One server's way. Pure.

    encoding: the best that it takes. warm_path: a GET that means nothing. has_schemas: it can hold an answer to one.
    wants_ids_by: the name of the field that asks for ids.
    """

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def encoding(self) -> Encoding: ...
    @property
    def warm_path(self) -> str | None: ...
    @property
    def has_schemas(self) -> bool: ...
    @property
    def wants_ids_by(self) -> str: ...

    def fields(self, ask: Ask, *, stream: bool = True) -> dict[str, Any]:
        """The request's body without its `prompt`."""

    def read(self, event: bytes) -> Chunk:
        """What the data of an event says. Raises UpstreamError for an error, or for what is no answer."""

    def tokenize_fields(self, model: str, text: str) -> dict[str, Any] | None:
        """The body that asks `^/tokenize` for the `tokens` of plain text; None where that cannot be asked."""


def dialect_of(backend: str) -> Dialect | None:
    """The dialect of a backend's name; None for one that knows no token ids."""
    return _DIALECTS.get(backend)


# --- the API of completions --------------------------------------------------------------------------------------


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _TimeInfo(msgspec.Struct):
    """Seconds."""

    queue_time: float = 0.0
    prompt_time: float = 0.0
    completion_time: float = 0.0


class _Logprobs(msgspec.Struct):
    """`tokens` and the keys of `top_logprobs` are `token_id:5` where that was asked for."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None
    tokens: list[TokenId] | None = None
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    time_info: _TimeInfo | None = None
    error: Any = None
    object: str = ""


_completions = msgspec.json.Decoder(_Completion)
_BY_ID: Final = "token_id:"
_DONE: Final = Chunk(is_last=True)


class _Completions:
    """What Cerebras and vLLM have in common."""

    path = "/completions"

    def read(self, event: bytes) -> Chunk:
        if event == b"[DONE]":
            return _DONE
        try:
            told = _completions.decode(event)
        except msgspec.DecodeError as error:
            raise BrokenStream(f"{error}: {event[:200]!r}") from error
        if told.error is not None or told.object == "error":
            raise error_chunk(msgspec.json.decode(event)) or AssertionError("it has an error")
        choice = told.choices[0] if told.choices else None
        details = told.usage.prompt_tokens_details if told.usage else None
        info = told.time_info
        ids = (choice.tokens or choice.token_ids or []) if choice else []
        return Chunk(
            ids=ids,
            chances=_chances(choice.logprobs, ids) if choice and choice.logprobs else None,
            end=_end(choice.finish_reason) if choice and choice.finish_reason else None,
            num_cached=details.cached_tokens if details else None,
            times=Times(info.queue_time * 1e3, info.prompt_time * 1e3, info.completion_time * 1e3) if info else None,
        )


def _chances(told: _Logprobs, ids: list[int]) -> list[Chance] | None:
    if told.tokens != [f"{_BY_ID}{token_id}" for token_id in ids] or None in told.token_logprobs:
        return None
    tops = told.top_logprobs or [None] * len(ids)
    if not len(ids) == len(told.token_logprobs) == len(tops):
        return None
    return [Chance(logprob or 0.0, _ranked(top or {})) for logprob, top in zip(told.token_logprobs, tops, strict=True)]


def _ranked(top: dict[str, float]) -> list[tuple[int, float]]:
    ranked = sorted(top.items(), key=lambda one: one[1], reverse=True)
    return [(int(name.removeprefix(_BY_ID)), logprob) for name, logprob in ranked if name.startswith(_BY_ID)]


_ENDS: Final[dict[str, End]] = {"length": "length", "content_filter": "content_filter"}


def _end(reason: str) -> End:
    if reason in ("abort", "error"):
        raise BrokenStream("the service gave the turn up")
    return _ENDS.get(reason, "stop")


def _common(ask: Ask, stream: bool) -> dict[str, Any]:
    asked = {"temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed}
    fields = {
        "model": ask.model,
        "max_tokens": ask.max_tokens,
        "presence_penalty": ask.presence_penalty,
        "frequency_penalty": ask.frequency_penalty,
        "stream": stream,
    }
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return fields | {name: value for name, value in asked.items() if value is not None}


class _Cerebras(_Completions):
    name = "cerebras"
    encoding = Encoding(msgpack=True, gzip=True)
    warm_path = "/tcp_warming"
    has_schemas = False
    wants_ids_by = "return_raw_tokens"

    def fields(self, ask: Ask, *, stream: bool = True) -> dict[str, Any]:
        fields = _common(ask, stream) | {"return_raw_tokens": True}
        return fields | ({"prompt_cache_key": ask.cache_key} if ask.cache_key else {})

    def tokenize_fields(self, model: str, text: str) -> None:
        return None


class _VLLM(_Completions):
    name = "vllm"
    encoding = PLAIN
    warm_path = None
    has_schemas = True
    wants_ids_by = "return_token_ids"

    def fields(self, ask: Ask, *, stream: bool = True) -> dict[str, Any]:
        fields = _common(ask, stream) | {"return_token_ids": True, "stop_token_ids": ask.stop_ids}
        if ask.top_logprobs is not None:
            fields |= {"logprobs": ask.top_logprobs, "return_tokens_as_token_ids": True}
        return fields | ({"structured_outputs": {"json": ask.schema}} if ask.schema is not None else {})

    def tokenize_fields(self, model: str, text: str) -> dict[str, Any]:
        return {"model": model, "prompt": text, "add_special_tokens": False}


# --- llama.cpp ---------------------------------------------------------------------------------------------------


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


class _Likely(msgspec.Struct):
    id: TokenId
    logprob: float


class _Probability(_Likely):
    top_logprobs: list[_Likely] = []


class _Prediction(msgspec.Struct):
    completion_probabilities: list[_Probability] | None = None
    tokens: list[TokenId] = []
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int | None = None
    timings: _Timings | None = None
    error: Any = None


_predictions = msgspec.json.Decoder(_Prediction)


class _LlamaCpp:
    name = "llamacpp"
    path = "^/completion"
    encoding = PLAIN
    warm_path = None
    has_schemas = True
    wants_ids_by = "return_tokens"

    def fields(self, ask: Ask, *, stream: bool = True) -> dict[str, Any]:
        fields = {
            "model": ask.model,
            "n_predict": ask.max_tokens,
            "stream": stream,
            "return_tokens": True,
            "cache_prompt": True,
            "presence_penalty": ask.presence_penalty,
            "frequency_penalty": ask.frequency_penalty,
        }
        asked = {"temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed, "json_schema": ask.schema}
        if ask.top_logprobs is not None:
            asked["n_probs"] = max(ask.top_logprobs, 1)  # 0 would be none at all
        return fields | {name: value for name, value in asked.items() if value is not None}

    def read(self, event: bytes) -> Chunk:
        try:
            told = _predictions.decode(event)
        except msgspec.DecodeError as error:
            raise BrokenStream(f"{error}: {event[:200]!r}") from error
        if told.error is not None:
            raise error_chunk(msgspec.json.decode(event)) or AssertionError("it has an error")
        timings = told.timings if told.stop else None
        return Chunk(
            ids=told.tokens,
            chances=_chances_by_id(told.completion_probabilities, told.tokens),
            end=("length" if told.stop_type == "limit" else "stop") if told.stop else None,
            num_cached=timings.cache_n if timings else None,
            times=Times(0.0, timings.prompt_ms, timings.predicted_ms) if timings else None,
            is_last=told.stop,
            num_told=told.tokens_predicted,
        )

    def tokenize_fields(self, model: str, text: str) -> dict[str, Any]:
        return {"content": text, "add_special": False, "parse_special": False}


def _chances_by_id(told: list[_Probability] | None, ids: list[int]) -> list[Chance] | None:
    if told is None or [one.id for one in told] != ids:
        return None
    return [Chance(one.logprob, [(other.id, other.logprob) for other in one.top_logprobs]) for one in told]


_DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (_Cerebras(), _VLLM(), _LlamaCpp())}
