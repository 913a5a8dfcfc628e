"""A limit on how much may be asked of what is behind a model in a time."""

from typing import Final

import msgspec

_WINDOWS: Final = {"second": 1 / 60, "minute": 1.0, "hour": 60.0, "day": 1440.0}  # in minutes


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit: `name` as the service calls it (`tokens-minute`), how much of it is left, and when it is whole again.

    reset_s: seconds from the answer on; None if not told.
    """

    name: str
    limit: float
    remaining: float
    reset_s: float | None = None

    @property
    def used_percent(self) -> float:
        """From 0 to 100."""
        if self.limit <= 0:
            return 100.0
        return round(min(max(100.0 * (1 - self.remaining / self.limit), 0.0), 100.0), 2)

    @property
    def window_minutes(self) -> float | None:
        """Length of the time that it counts over."""
        return _WINDOWS.get(self.name.rpartition("-")[2])
