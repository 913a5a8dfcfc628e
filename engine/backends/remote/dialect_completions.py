"""The completions of Cerebras and of vLLM, which are OpenAI's with token ids."""

from typing import Any, Final

import msgspec

from engine.backends.chance import Chance
from engine.backends.remote.dialect import Ask, Chunk, End, Times, TokenId
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import BrokenStream, error_chunk


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
    text: str | None = None
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
            has_lost_ids=choice is not None
            and bool(choice.text)
            and choice.tokens is None
            and choice.token_ids is None,
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


class Cerebras(_Completions):
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


class VLLM(_Completions):
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
