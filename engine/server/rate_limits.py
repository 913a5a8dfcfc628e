"""`codex.rate_limits`: how much is left of the limits on what samples, as Codex shows it to its user."""

from typing import Any

from engine.backends.base import Backend
from engine.backends.rate_limit import RateLimit
from engine.clock import wall_clock
from engine.outgoing import encode_frame
from engine.response import Response


class LimitsReport:
    """What one connection is told of them: anew only when they have changed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._told: tuple[RateLimit, ...] = ()

    def news(self, response: Response) -> bytes | None:
        """The frame about what this response samples from; None where there is nothing new."""
        limits = self._backend.rate_limits(response.request.echo.model)
        if not limits or limits == self._told:
            return None
        self._told = limits
        return rate_limits_frame(limits, wall_clock())


def rate_limits_frame(limits: tuple[RateLimit, ...], now: float) -> bytes:
    """The frame for these, the fullest first; two have a place in it. now: seconds since the epoch."""
    windows = dict(zip(("primary", "secondary"), (_window(limit, now) for limit in limits), strict=False))
    return encode_frame({"type": "codex.rate_limits", "rate_limits": windows, "limit_name": limits[0].name})


def _window(limit: RateLimit, now: float) -> dict[str, Any]:
    """Whole minutes and seconds, as Codex reads them; what is not known is left out."""
    window: dict[str, Any] = {"used_percent": limit.used_percent}
    if limit.window_minutes is not None:
        window["window_minutes"] = max(round(limit.window_minutes), 1)
    if limit.reset_s is not None:
        window["reset_at"] = round(now + limit.reset_s)
    return window
