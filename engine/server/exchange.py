"""What a peer asks over HTTP and what it gets: pure values, shared by access, routes and the driver in http."""

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from engine.errors import EngineError

# RFC 9110 15.5.22: a 426 must say what to upgrade to; RFC 6455 4.4: and which version of it.
_UPGRADE_HEADERS: Final = (("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-version", "13"))


class Head(msgspec.Struct, frozen=True):
    """An HTTP request without its body. Header names are lower case; values are Latin-1 text without outer spaces."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
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


class Answer(msgspec.Struct, frozen=True):
    """One whole JSON answer. `headers` are in addition to those of the body and the connection."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(value: Any, status: int = HTTPStatus.OK) -> Answer:
    """An answer with `value`, anything msgspec can encode, as its body."""
    return Answer(status, msgspec.json.encode(value))


def error_answer(error: EngineError, *headers: tuple[str, str]) -> Answer:
    """The error as the API writes it: `{"error": {type, code, message, param}}` under the error's status."""
    if error.status == HTTPStatus.UPGRADE_REQUIRED:
        headers += _UPGRADE_HEADERS
    return Answer(error.status, msgspec.json.encode({"error": error.body()}), headers)
