"""Which request gets which answer. Those for runs are in runs.py.

GET /healthz              200 as long as the process serves at all
GET /readyz               200, or 503 with the reason
GET /v1/models[/{id}]     the models
GET /v1/responses         WebSocket handshake: an Admission; anything else: 426
"""

from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from engine.backends.base import ModelInfo
from engine.errors import RequestError, ServerError
from engine.server.access import Admission, admit, check_peer
from engine.server.exchange import Answer, Request, json_answer
from engine.server.handshake import check_handshake
from engine.server.http import Outcome
from engine.server.table import RouteTable, unknown_url
from engine.settings import Settings

Handler = Callable[[Request], Coroutine[Any, Any, Outcome]]
Row = tuple[str, str, Handler]

_RESPONSES: Final = "/v1/responses"
_READ: Final = "GET HEAD"
_SOCKET_ONLY: Final = "Open a WebSocket on this URL, or POST to it."


class Service(msgspec.Struct, frozen=True):
    """What the routes show of the server.

    resolve: from any of a model's names to the id that it is listed with; raises NotFound. unready: why it takes no
    runs now (loading, draining), or None.
    """

    models: tuple[ModelInfo, ...]
    resolve: Callable[[str], str]
    unready: str | None = None


class Routes:
    """Answers every request of a server."""

    def __init__(self, service: Callable[[], Service], settings: Settings, more: Iterable[Row] = ()) -> None:
        """more: rows of others, as RouteTable takes them."""
        self._service = service
        self._settings = settings
        self._table = RouteTable[Handler](
            [
                (_READ, "/healthz", self._healthz),
                (_READ, "/readyz", self._readyz),
                (_READ, "/v1/models", self._models),
                (_READ, "/v1/models/{id*}", self._model),
                ("GET", _RESPONSES, self._socket),
                *more,
            ]
        )

    async def __call__(self, request: Request) -> Outcome:
        """The answer, or the terms on which the upgrade goes ahead. Raises EngineError."""
        head = request.head
        check_peer(head, self._settings)
        if head.wants_websocket and head.path != _RESPONSES:
            raise unknown_url(head.method, head.path)
        handler, params = self._table.find(head.method, head.path)
        return await handler(msgspec.structs.replace(request, params=params))

    async def _healthz(self, request: Request) -> Answer:
        return json_answer({"status": "ok"})

    async def _readyz(self, request: Request) -> Answer:
        service = self._service()
        if service.unready:
            raise ServerError(f"Not ready: {service.unready}", status=503, code="not_ready")
        absent = [model.id for model in service.models if model.unavailable]
        return json_answer({"status": "ready"} | ({"unavailable": absent} if absent else {}))

    async def _models(self, request: Request) -> Answer:
        return json_answer({"object": "list", "data": self._service().models})

    async def _model(self, request: Request) -> Answer:
        service = self._service()
        model_id = service.resolve(request.params["id"])
        return json_answer(next(model for model in service.models if model.id == model_id))

    async def _socket(self, request: Request) -> Admission:
        """Raises RequestError: 400 or 426 for an unsound handshake or none, and those of `admit`."""
        if not request.head.wants_websocket:
            raise RequestError(_SOCKET_ONLY, status=HTTPStatus.UPGRADE_REQUIRED, code="upgrade_required")
        check_handshake(request.head)
        return msgspec.structs.replace(admit(request.head, self._settings), request_id=request.id)
