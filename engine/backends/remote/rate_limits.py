"""What a service says of its rate limits in the heads of its answers (`x-ratelimit-…`)."""

import math
import re
from collections.abc import Mapping
from typing import Final

from engine.backends.rate_limit import RateLimit

_NAME: Final = re.compile(r"x-ratelimit-(limit|remaining|reset)-([a-z0-9-]+)")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}


def rate_limits_of(headers: Mapping[str, str]) -> tuple[RateLimit, ...]:
    """The limits that an answer's head tells, the fullest first; none when a number is missing or is none."""
    told: dict[str, dict[str, str]] = {}
    for header, value in headers.items():
        if match := _NAME.fullmatch(header.lower()):
            told.setdefault(match[2], {})[match[1]] = value
    found = []
    for name, parts in told.items():
        limit, remaining = _number(parts.get("limit")), _number(parts.get("remaining"))
        if limit is not None and remaining is not None:
            found.append(RateLimit(name=name, limit=limit, remaining=remaining, reset_s=_seconds(parts.get("reset"))))
    return tuple(sorted(found, key=lambda one: one.used_percent, reverse=True))


def _number(text: str | None) -> float | None:
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds(text: str | None) -> float | None:
    """Cerebras writes plain seconds, OpenAI `6m0s`."""
    if (number := _number(text)) is not None or text is None:
        return number
    parts = _DURATION.findall(text)
    return sum(float(value) * _UNITS_S[unit] for value, unit in parts) if parts else None
