"""`/completion` of llama.cpp's server."""

from typing import Any

import msgspec

from engine.backends.chance import Chance
from engine.backends.remote.dialect import Ask, Chunk, Times, TokenId
from engine.backends.remote.encoding import PLAIN
from engine.backends.remote.errors import BrokenStream, error_chunk


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


class LlamaCpp:
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
