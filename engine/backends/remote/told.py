"""What a service tells of itself, as far as it can be true: these numbers are added up, stored and billed."""

from typing import Final

_MAX_COUNT: Final = 1 << 40  # tokens
_MAX_MS: Final = 1e10  # four months


def plausible_count(told: int | None) -> int | None:
    """A count of tokens; None for none, and for what is no count."""
    return told if told is not None and 0 <= told < _MAX_COUNT else None


def plausible_ms(told: float | None, unit_ms: float = 1.0) -> float | None:
    """A time in milliseconds; None for none, and for what is no time. unit_ms: what it is told in."""
    return told * unit_ms if told is not None and 0 <= told * unit_ms < _MAX_MS else None
