"""The chunks of a streamed chat completion, and of what it counts, as the services of the API send them.

Only what is used is named; a field may be missing or null wherever some service leaves it out. Names differ: reasoning
is `reasoning` (Cerebras, vLLM) or `reasoning_content` (llama.cpp, older vLLM), times are `time_info` in seconds
(Cerebras) or `timings` in milliseconds (llama.cpp).
"""

from typing import Any, Final

import msgspec

from engine.content import TokenLogprob, TopLogprob


class Function(msgspec.Struct, frozen=True):
    """arguments: JSON text, or the object itself, which some services send at once."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPart(msgspec.Struct, frozen=True):
    """A whole call or a part of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPart] | None = None


class Likely(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class Rated(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Likely] | None = None


class Logprobs(msgspec.Struct, frozen=True):
    content: list[Rated] | None = None


class Choice(msgspec.Struct, frozen=True):
    """message: of an answer that came whole; some services in front of others know no streams."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class Counts(msgspec.Struct, frozen=True):
    """`usage`: tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class TimeInfo(msgspec.Struct, frozen=True):
    """Cerebras: seconds."""

    queue_time: float | None = None
    prompt_time: float | None = None
    completion_time: float | None = None


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp: milliseconds, and tokens that were in its cache, prefilled and sampled."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct, frozen=True):
    """error: there is one instead of a chunk; or all of it is one, and `object` says so."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    time_info: TimeInfo | None = None
    timings: Timings | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether it says what went wrong."""
        return bytes(self.error) != b"null" or self.object == "error"


DECODER: Final = msgspec.json.Decoder(Chunk)


def logprobs_of(choice: Choice) -> tuple[TokenLogprob, ...]:
    """What the choice says of the tokens of its text."""
    rated = choice.logprobs.content if choice.logprobs is not None else None
    return tuple(
        TokenLogprob(one.token, _bytes(one), one.logprob, [_top(other) for other in one.top_logprobs or ()])
        for one in rated or ()
    )


def _top(one: Likely) -> TopLogprob:
    return TopLogprob(one.token, _bytes(one), one.logprob)


def _bytes(one: Likely | Rated) -> list[int]:
    return list(one.token.encode()) if one.bytes is None else one.bytes
