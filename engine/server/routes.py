"""Which request gets which answer: a pure function from a request's head to an Answer or an Admission.

GET /healthz              200 as long as the process serves at all
GET /readyz               200, or 503 with the reason
GET /v1/models[/{id}]     the models
GET /v1/responses         WebSocket handshake: an Admission; anything else: 426
"""

import re
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import msgspec

from engine.backends.base import ModelInfo
from engine.errors import NotFound, RequestError, ServerError
from engine.server.access import Admission, admit, check_peer
from engine.server.exchange import Answer, Head, error_answer, json_answer
from engine.settings import Settings

_RESPONSES: Final = "/v1/responses"
_MODEL: Final = re.compile("/v1/models/(?P<id>.+)")
_READ: Final = ("GET", "HEAD")
_METHODS: Final = {"/healthz": _READ, "/readyz": _READ, "/v1/models": _READ, _RESPONSES: ("GET",)}

_SOCKET_ONLY: Final = "Open a WebSocket on this URL; runs over HTTP requests come with a later version."
_KEY: Final = re.compile("[A-Za-z0-9+/]{22}==")  # 16 bytes in base64
_PARSED_HEADERS: Final = ("connection", "sec-websocket-extensions", "sec-websocket-protocol")


class Service(msgspec.Struct, frozen=True):
    """What the routes show of the server. `unready` says why it takes no runs now (loading, draining), or None."""

    models: tuple[ModelInfo, ...] = ()
    unready: str | None = None


def respond(head: Head, service: Service, settings: Settings) -> Answer | Admission:
    """The answer to a request, or the terms on which its upgrade goes ahead. Raises nothing; refusals are answers."""
    try:
        check_peer(head, settings)
        methods = _allowed_methods(head)
        if head.wants_websocket:
            return _upgrade(head, settings)
        if head.method not in methods:
            return _method_refusal(head, methods)
        return _read(head, service)
    except (RequestError, ServerError) as error:
        return error_answer(error)


def _allowed_methods(head: Head) -> tuple[str, ...]:
    if _MODEL.fullmatch(head.path):
        return _READ
    if head.path in _METHODS:
        return _METHODS[head.path]
    raise _unknown_url(head)


def _unknown_url(head: Head) -> NotFound:
    return NotFound(f"Unknown request URL: {head.method} {head.path}.", code="unknown_url")


def _method_refusal(head: Head, methods: tuple[str, ...]) -> Answer:
    message = f"{head.method} is not possible on {head.path}."
    if head.path == _RESPONSES and head.method == "POST":
        message = _SOCKET_ONLY
    error = RequestError(message, status=HTTPStatus.METHOD_NOT_ALLOWED, code="method_not_allowed")
    return error_answer(error, ("allow", ", ".join(methods)))


def _read(head: Head, service: Service) -> Answer:
    match head.path:
        case "/healthz":
            return json_answer({"status": "ok"})
        case "/readyz" if service.unready is None:
            return json_answer({"status": "ready"})
        case "/readyz":
            raise ServerError(f"Not ready: {service.unready}", status=503, code="not_ready")
        case "/v1/responses":
            raise RequestError(_SOCKET_ONLY, status=HTTPStatus.UPGRADE_REQUIRED, code="upgrade_required")
        case "/v1/models":
            return json_answer({"object": "list", "data": service.models})
        case path:
            return _model(unquote(path.removeprefix("/v1/models/")), service)


def _model(model_id: str, service: Service) -> Answer:
    for model in service.models:
        if model.id == model_id:
            return json_answer(model)
    raise NotFound(f"The model '{model_id}' does not exist.", param="model", code="model_not_found")


# --- WebSocket handshake -----------------------------------------------------------------------------------------


def _upgrade(head: Head, settings: Settings) -> Admission:
    """Raises RequestError: 404 on another path, 400 or 426 for an unsound handshake, those of `admit`."""
    if head.path != _RESPONSES:
        raise _unknown_url(head)
    _check_handshake(head)
    return admit(head, settings)


def _check_handshake(head: Head) -> None:
    """Refuse what trio-websocket would fail on: it hangs instead of answering (RFC 6455 4.2).

    Raises RequestError with status 426 for another version, 400 for the rest.
    """
    if head.values("sec-websocket-version") != ["13"]:
        raise RequestError("Only version 13 of WebSocket is spoken here.", status=426, code="upgrade_required")
    keys = head.values("sec-websocket-key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise RequestError("The handshake needs one Sec-WebSocket-Key of 16 bytes in base64.")
    if [value.lower() for value in head.values("upgrade")] != ["websocket"]:
        raise RequestError("The handshake needs one Upgrade header that says websocket and nothing else.")
    if head.tokens("transfer-encoding") or head.tokens("content-length") not in ([], ["0"]):
        raise RequestError("A WebSocket handshake has no body.")
    if not all(value.isascii() for name in _PARSED_HEADERS for value in head.values(name)):
        raise RequestError("The handshake's headers must be ASCII.")
