"""What a peer asks over HTTP and what it gets: pure values, shared by access, routes and the driver in http."""

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec

from engine.errors import EngineError, RequestError
from engine.ledger import QuotaExceeded

Headers = tuple[tuple[str, str], ...]
ReadBody = Callable[[], Awaitable[bytes]]

# RFC 9110 15.5.22: a 426 must say what to upgrade to; RFC 6455 4.4: and which version of it.
_UPGRADE_HEADERS: Final = (("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-version", "13"))
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")  # what can stand in any log


class Head(msgspec.Struct, frozen=True):
    """An HTTP request without its body. Header names are lower case; values are Latin-1 text without outer spaces."""

    method: str
    target: str
    headers: Headers = ()
    http_version: str = "1.1"

    def values(self, name: str) -> list[str]:
        """The header's values in order, one for each line it came on."""
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: str) -> list[str]:
        """The header's comma-separated tokens over all its lines, without spaces, in lower case."""
        parts = ",".join(self.values(name)).split(",")
        return [token for part in parts if (token := part.strip().lower())]

    @property
    def authority(self) -> str | None:
        """The host, perhaps with a port, that the peer believes to talk to; None when it named none or several.

        An absolute target wins over the Host header (RFC 9112 3.2.2).
        """
        if absolute := _absolute(self.target):
            return absolute[0]
        match self.values("host"):
            case [host]:
                return host
            case _:
                return None

    @property
    def path(self) -> str:
        """The target's path, still percent-encoded."""
        return self._origin_form.partition("?")[0]

    @property
    def query(self) -> dict[str, list[str]]:
        """The query's decoded values by name; a name without a value has the value ''."""
        return parse_qs(self._origin_form.partition("?")[2], keep_blank_values=True)

    @property
    def _origin_form(self) -> str:
        absolute = _absolute(self.target)
        return absolute[1] if absolute else self.target

    @property
    def wants_websocket(self) -> bool:
        """True for a WebSocket handshake, sound or not. RFC 9110 7.8: Upgrade means nothing in HTTP/1.0."""
        return (
            self.method == "GET"
            and self.http_version != "1.0"
            and "websocket" in self.tokens("upgrade")
            and "upgrade" in self.tokens("connection")
        )


def _absolute(target: str) -> tuple[str, str] | None:
    """Authority and origin form of an absolute target, as proxies send it; None for any other form."""
    scheme, found, rest = target.partition("://")
    if not found or scheme.lower() not in ("http", "https"):
        return None
    authority, _, origin_form = rest.partition("/")
    return authority, "/" + origin_form


class Request(msgspec.Struct, frozen=True):
    """A request as its route gets it. `read_body` gives the whole body, decoded; raises RequestError.

    id: names it in logs and in the answer's `x-request-id`; params: what the URL's pattern left open, decoded.
    """

    head: Head
    id: str
    read_body: ReadBody
    params: Mapping[str, str] = {}


def request_id(head: Head) -> str | None:
    """The id that the peer has given its request by `x-request-id`; None for none, or one that is not fit to show."""
    match head.values("x-request-id"):
        case [value] if _REQUEST_ID.fullmatch(value):
            return value
        case _:
            return None


class Answer(msgspec.Struct, frozen=True):
    """One whole JSON answer. `headers` are in addition to those of the body and the connection."""

    status: int
    body: bytes
    headers: Headers = ()


class Send(Protocol):
    """Sends parts of a body, each as an HTTP chunk of its own, all with one write."""

    async def __call__(self, *chunks: bytes) -> None:
        """Returns when the connection has taken them. Raises nothing but Cancelled."""


class StreamedAnswer(msgspec.Struct, frozen=True):
    """An answer whose body is made while it is sent.

    `produce` is called once, directly after the route returned it, and owns what the route opened for it. It is
    cancelled when the peer leaves. The head goes out with the first chunk, so an EngineError before that is answered
    as if the route had raised it.
    """

    produce: Callable[[Send], Awaitable[None]]
    headers: Headers
    status: int = HTTPStatus.OK


class HttpError(RequestError):
    """A refusal that says in `headers` what would be accepted."""

    def __init__(self, message: str, *, status: int, code: str, headers: Headers) -> None:
        super().__init__(message, status=status, code=code)
        self.headers = headers


def json_answer(value: Any, status: int = HTTPStatus.OK) -> Answer:
    """An answer with `value`, anything msgspec can encode, as its body."""
    return Answer(status, msgspec.json.encode(value))


def error_answer(error: EngineError, *headers: tuple[str, str]) -> Answer:
    """The error as the API writes it: `{"error": {type, code, message, param}}` under the error's status."""
    if isinstance(error, HttpError):
        headers += error.headers
    if isinstance(error, QuotaExceeded):
        headers += (("x-should-retry", "false"),)  # OpenAI's clients retry every other 429 by themselves
    if error.status == HTTPStatus.UPGRADE_REQUIRED:
        headers += _UPGRADE_HEADERS
    return Answer(error.status, msgspec.json.encode({"error": error.body()}), headers)
