"""Every error the engine raises, and the form it has on the wire.

EngineError
├── RequestError      the peer's fault: 4xx, names the field (JSON path) that is wrong
│   └── NotFound      an id that is unknown, expired or somebody else's
└── ServerError       our fault: 5xx; the message is safe to show, details go to the log
    └── BackendError  the model or the service behind it failed

Codes are OpenAI's, byte for byte, where OpenAI has one: clients decide by them whether to retry.
"""

from typing import Any, Self


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""

    status = 500
    code = "server_error"
    kind = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.status = status or type(self).status

    def body(self) -> dict[str, Any]:
        """The `error` object of an error frame or an HTTP error: type, code, message, param."""
        return {"type": self.kind, "code": self.code, "message": self.message, "param": self.param}


class RequestError(EngineError):
    """The peer sent something it must change before it tries again. `stream_id`: the lane to say so on."""

    stream_id: str | None = None

    status = 400
    code = "invalid_value"
    kind = "invalid_request_error"

    def at(self, prefix: str) -> Self:
        """The same error seen from one level further out: `at("input[2]")` turns `call_id` into `input[2].call_id`."""
        inner = self.param or ""
        joint = "" if not inner or inner.startswith("[") else "."
        return type(self)(self.message, param=f"{prefix}{joint}{inner}", code=self.code, status=self.status)


class NotFound(RequestError):
    """The id is unknown here, has ended, has expired, or belongs to another principal."""

    status = 404
    code = "response_not_found"


class ServerError(EngineError):
    """We failed; the peer may retry."""


class BackendError(ServerError):
    """The model, its worker, or the service behind it failed."""

    code = "server_error"
