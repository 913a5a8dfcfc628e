"""What a service's refusals and failures mean for us: which are worth another try, and what the client is told.

The client is told what it can act on: how long to wait, that its input is too long, that the model is gone, what the
service does not like about the request, in the service's own words. What only whoever runs this server can mend (its
key, its balance, a service that fails) is said without them; they go to the log.

| status of the service | what the client gets | again? |
|---|---|---|
| 400, 422 about the context's length, 413 | 400 `context_length_exceeded` | no |
| 404, or 400 about the model | 404 `model_not_found` | no |
| 400, 422 about anything else | 400 `invalid_prompt`, at our name of the parameter | no |
| 402, or 429 `insufficient_quota` | 429 `insufficient_quota` | no |
| 429, "queue exceeded" | 429 `rate_limit_exceeded` with the wait | yes |
| 408, 409, 5xx, no connection, a stream that breaks or stalls | 500 `server_error` | yes |
| 401, 403, and every other 3xx and 4xx | 500 `server_error` | no |
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from engine.errors import BackendError

_TOO_LONG: Final = re.compile(
    r"context.{0,20}(length|size|window)|maximum context|exceed_context|too many tokens", re.I
)
_NO_MODEL: Final = re.compile(r"model_not_found|model .{0,200}(does not exist|not found)", re.I | re.S)
_QUEUE: Final = re.compile(r"queue.{0,20}exceeded|queue_exceeded|too_many_requests|rate.?limit", re.I)
_SPENT: Final = ("insufficient_quota", "payment_required")
_MAX_SHOWN: Final = 300  # characters of a service's message
_MIN_SECRET: Final = 4  # characters of a key that is cut short: fewer tell nothing
_OUR_PARAMS: Final = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "n_predict": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
} | {
    name: name
    for name in (
        "model", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "presence_penalty",
        "frequency_penalty", "seed", "top_logprobs",
    )
}  # fmt: skip


class UpstreamError(BackendError):
    """The service did not do what it was asked. Names no secret, once what it says has been through `without`.

    detail: what the service said, for the log. upstream_status: of its answer, 0 when there was none. is_retryable:
    whether the same may succeed in a moment. wait_s: how long the service asked to be left alone.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        kind: str = "server_error",
        detail: str = "",
        upstream_status: int = 0,
        is_retryable: bool = False,
        wait_s: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status, param=param)
        self.kind = kind
        self.detail = detail
        self.upstream_status = upstream_status
        self.is_retryable = is_retryable
        self.wait_s = wait_s

    def hide(self, secret: str) -> None:
        """Take the secret out of everything that it says."""
        self.message, self.detail = without(secret, self.message), without(secret, self.detail)
        self.args = (self.message,)


class BrokenStream(UpstreamError):
    """The answer ended, stalled or could not be read before it was whole; or no connection came about."""

    def __init__(self, detail: str) -> None:
        super().__init__("The model's service broke off its answer.", detail=detail, is_retryable=True)


class Unreachable(UpstreamError):
    """No connection, or it was gone before an answer began."""

    def __init__(self, detail: str) -> None:
        super().__init__("The model's service cannot be reached.", detail=detail, is_retryable=True)


class TooSlow(UpstreamError):
    """The turn has taken all the time that it may."""

    def __init__(self, detail: str) -> None:
        super().__init__("The model's service took too long.", detail=detail)


def refused(status: int, body: bytes, headers: Mapping[str, str], now: float) -> UpstreamError:
    """The error of an answer with this status, 300 or more. headers: by names in lower case; now: see `wait_of`."""
    return _error_of(status, _said(body), wait_of(headers, now))


def error_chunk(event: Mapping[str, Any]) -> UpstreamError | None:
    """The error that a stream's event is instead of a chunk; None for a chunk."""
    error = event.get("error")
    if error is None and event.get("object") != "error":
        return None
    found = _of_error(error if error is not None else event)
    status = event.get("status_code") or found.status or _likely_status(found.all)
    return _error_of(status if isinstance(status, int) else 500, found, None)


def _likely_status(text: str) -> int:
    """Of an error that tells none: what breaks a stream is the service's fault, unless it says what of ours it was."""
    return 400 if _TOO_LONG.search(text) or _NO_MODEL.search(text) else 500


class _Said(msgspec.Struct, frozen=True):
    """What there is of an error object. is_told: as one, and not as a page of whoever stands in between."""

    message: str
    code: str = ""
    kind: str = ""
    status: int = 0
    param: str | None = None
    is_told: bool = True

    @property
    def all(self) -> str:
        return " ".join(part for part in (self.code, self.kind, self.message) if part)


def _said(body: bytes) -> _Said:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _Said(body[:_MAX_SHOWN].decode("utf-8", "replace"), is_told=False)
    return _of_error(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def _of_error(error: Any) -> _Said:
    if not isinstance(error, dict):
        return _Said(str(error)[:_MAX_SHOWN])
    message, param = error.get("message"), error.get("param")
    if not message:
        message, param = _of_detail(error.get("detail") or "")
    code = error.get("code")
    status = error.get("status_code") or (code if isinstance(code, int) else 0)
    text = "" if isinstance(code, int) else str(code or "")
    shown = " ".join(str(message).split())[:_MAX_SHOWN]
    return _Said(shown, text, str(error.get("type") or ""), status, param if isinstance(param, str) else None)


def _of_detail(detail: Any) -> tuple[str, str | None]:
    """What FastAPI says of a body that it does not take: the first fault, and the field that has it."""
    match detail:
        case [{"msg": str(message), "loc": ["body", str(field), *_]}, *_]:
            return f"{field}: {message}", field
    return str(detail), None


def _error_of(status: int, said: _Said, wait_s: float | None) -> UpstreamError:
    text = said.all
    known: dict[str, Any] = {"detail": f"{status}: {text}", "upstream_status": status}
    if status == 402 or (status == 429 and any(word in text for word in _SPENT)):
        message = "The model's service wants to be paid before it goes on."
        return UpstreamError(message, code="insufficient_quota", status=429, kind="insufficient_quota", **known)
    if status == 429 or (status >= 500 and _QUEUE.search(text)):
        return UpstreamError(
            _limit_message(wait_s),
            code="rate_limit_exceeded",
            status=429,
            kind="rate_limit_error",
            is_retryable=True,
            wait_s=wait_s,
            **known,
        )
    if status == 413 or (400 <= status < 500 and _TOO_LONG.search(text)):
        message = "The input is longer than the model's service takes; shorten it."
        return _about_request(message, "context_length_exceeded", 400, said, known)
    if status == 404 or (status == 400 and _NO_MODEL.search(text)):
        return _about_request("The model's service does not have this model.", "model_not_found", 404, said, known)
    if status in (400, 422):
        return _about_request("The model's service did not take the request.", "invalid_prompt", 400, said, known)
    if status in (401, 403):
        return UpstreamError(f"The model's service refused this server's key ({status}).", **known)
    if status in (408, 409) or status >= 500:
        return UpstreamError("The model's service failed.", is_retryable=True, wait_s=wait_s, **known)
    return UpstreamError(f"The model's service did not take the request ({status}).", **known)


def _about_request(sentence: str, code: str, status: int, said: _Said, known: dict[str, Any]) -> UpstreamError:
    """An error that the client can mend, with what the service says of it."""
    message = f"{sentence} It says: {said.message}" if said.is_told and said.message else sentence
    kind = "invalid_request_error"
    return UpstreamError(message, code=code, status=status, kind=kind, param=our_param(said.param), **known)


def our_param(theirs: str | None) -> str | None:
    """Our name of the field that a service names by a path in its own request; None when it has none here."""
    name = re.match(r"\w*", theirs or "")
    return None if name is None else _OUR_PARAMS.get(name[0])


def without(secret: str, text: str) -> str:
    """The text with stars for the secret, also where its end is cut off."""
    text = text.replace(secret, "***")
    for length in range(len(secret) - 1, _MIN_SECRET - 1, -1):
        if text.endswith(secret[:length]):
            return f"{text[:-length]}***"
    return text


def _limit_message(wait_s: float | None) -> str:
    # Codex reads the wait from these very words, in plain digits.
    wait = "" if wait_s is None else f" Please try again in {wait_s:.15g}s."
    return f"The model's service has reached its rate limit.{wait}"


def wait_of(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait before another try, from `retry-after-ms` or `retry-after`; None when there is no such word.

    now: seconds since the epoch, against which a date is held.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        with suppress(ValueError):
            wait_s = float(text) * unit
            if math.isfinite(wait_s):
                return max(0.0, wait_s)
        with suppress(ValueError, OverflowError):
            return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None


def is_about_encoding(error: UpstreamError, *, is_proven: bool) -> bool:
    """Whether a body in plain JSON may be taken where this one was not. is_proven: one like it has been taken."""
    return error.upstream_status == 415 or (error.upstream_status in (400, 422) and not is_proven)
