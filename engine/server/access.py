"""Who may talk to the server, and as whom: decided from a request's head alone.

Two doors. `check_peer` is for every request: a web page can reach a loopback server, either from its own origin
(it then sends `Origin`) or by DNS rebinding (the `Host` is then the page's name, not ours). `admit` is for WebSocket
handshakes: it names the principal and chooses the lifecycle of the connection.
"""

import re
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import msgspec

from engine.errors import RequestError
from engine.server.exchange import Head
from engine.settings import LifecycleName, Settings

LOCAL_PRINCIPAL: Final = "local"  # no key presented; not hex, so no key can hash to it
_PRINCIPAL_CHARS: Final = 32  # 128 bits: no two keys will ever meet

_AUTHORITY: Final = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")
_WILDCARDS: Final = ("0.0.0.0", "::", "")

_LIFECYCLES: Final[dict[str, LifecycleName]] = {
    "append": "append",
    "chain": "chain",
    "inject": "inject",
    "responses_websockets=2026-02-04": "append",
    "responses_websockets=2026-02-06": "chain",
    "responses_multi_agent=v1": "inject",
}
_SUPPORTED_TEXT: Final = "There are append, chain and inject."


class Admission(msgspec.Struct, frozen=True):
    """What the server knows about a connection before its first frame.

    principal: owner of what the connection makes, hex or `local`; never the key itself. wants_limits: it is Codex,
    which shows them. request_id: the handshake's.
    """

    principal: str
    lifecycle: LifecycleName
    wants_timing: bool = False
    wants_limits: bool = False
    request_id: str = ""


def check_peer(head: Head, settings: Settings) -> None:
    """Refuse requests that a web page could have made behind the user's back. Raises RequestError with status 403.

    403 and not 421: RFC 9110 lets clients repeat a 421 over a new connection by themselves, which cannot help here.
    """
    if not _is_ours(head.authority, settings):
        message = "The Host header does not name this server; add the name to the setting allowed_hosts."
        raise RequestError(message, status=403, code="host_not_allowed")
    allowed = {_plain_origin(origin) for origin in settings.allowed_origins}
    if not allowed.issuperset(map(_plain_origin, head.values("origin"))):
        message = "Web pages of this origin may not connect; add it to the setting allowed_origins."
        raise RequestError(message, status=403, code="origin_not_allowed")


def admit(head: Head, settings: Settings) -> Admission:
    """The terms of a WebSocket connection.

    Raises RequestError when it asks for a lifecycle that is not served: 400 if by query, 426 if by header.
    """
    return Admission(
        principal=principal(head),
        lifecycle=_lifecycle(head, settings),
        wants_timing="true" in head.tokens("x-responsesapi-include-timing-metrics"),
        wants_limits=any(value.lower().startswith("codex") for value in head.values("originator")),
    )


def principal(head: Head) -> str:
    """A stable name for the presented bearer key, from which the key cannot be found; `local` without one."""
    for value in head.values("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer" and (key := key.strip()):
            return sha256(key.encode("latin-1")).hexdigest()[:_PRINCIPAL_CHARS]
    return LOCAL_PRINCIPAL


# --- Host and Origin ---------------------------------------------------------------------------------------------


def _is_ours(authority: str | None, settings: Settings) -> bool:
    """True if the name is one of ours. The port may be any: tunnels and containers move it."""
    parts = _AUTHORITY.fullmatch((authority or "").lower())
    if parts is None:
        return False
    name = parts["v6"] or parts["name"]
    if name in {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}:
        return True
    address = _address(name)
    # Rebinding needs a name, so a server bound to every address may take any address as its own.
    return address is not None and (address.is_loopback or settings.host in _WILDCARDS)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _plain_origin(origin: str) -> str:
    return origin.lower().rstrip("/")


# --- lifecycle ---------------------------------------------------------------------------------------------------


def _lifecycle(head: Head, settings: Settings) -> LifecycleName:
    match head.query.get("lifecycle", []):
        case [name]:
            return _lifecycle_named(name)
        case []:
            return _lifecycle_of_beta(head.tokens("openai-beta")) or settings.lifecycle
        case _:
            raise RequestError("The query names `lifecycle` more than once.", param="lifecycle")


def _lifecycle_named(name: str) -> LifecycleName:
    if name not in _LIFECYCLES:
        raise RequestError(f"Unknown lifecycle '{name}'. {_SUPPORTED_TEXT}", param="lifecycle")
    return _LIFECYCLES[name]


def _lifecycle_of_beta(tokens: list[str]) -> LifecycleName | None:
    """The lifecycle asked for by `OpenAI-Beta`; a client that lists several can speak each, so a served one wins.

    Raises RequestError with status 426: the only one on which Codex goes over to HTTP at once.
    """
    for token in tokens:
        if "=" in token and token in _LIFECYCLES:
            return _LIFECYCLES[token]
    for token in tokens:
        # Another date is another design of the same family; its client would wait for what we never send.
        if token.startswith("responses_websockets="):
            message = f"`OpenAI-Beta: {token}` is not supported. {_SUPPORTED_TEXT}"
            raise RequestError(message, status=426, code="unsupported_lifecycle")
    return None
