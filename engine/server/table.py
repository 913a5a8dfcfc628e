"""The table of URLs: a method and a path pattern, and what answers them."""

import re
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote

from engine.errors import NotFound
from engine.server.exchange import HttpError

H = TypeVar("H")


class RouteTable(Generic[H]):
    """What answers a request, by its method and path.

    Rows are (methods, pattern, answerer). `{name}` in a pattern stands for one segment, `{name*}` for the rest with its
    slashes; neither for nothing. The first pattern that fits a path and has the method wins.
    """

    def __init__(self, rows: Iterable[tuple[str, str, H]]) -> None:
        self._rows = [(methods.split(), _compile(pattern), answerer) for methods, pattern, answerer in rows]

    def find(self, method: str, path: str) -> tuple[H, dict[str, str]]:
        """The answerer and what the pattern left open, decoded; `path` is percent-encoded.

        Raises NotFound `unknown_url`, HttpError with status 405.
        """
        allowed: list[str] = []
        for methods, pattern, answerer in self._rows:
            if found := pattern.fullmatch(path):
                if method in methods:
                    return answerer, {name: unquote(value) for name, value in found.groupdict().items()}
                allowed += methods
        if not allowed:
            raise unknown_url(method, path)
        allow = (("allow", ", ".join(allowed)),)
        message = f"{method} is not possible on {path}."
        raise HttpError(message, status=405, code="method_not_allowed", headers=allow)


def unknown_url(method: str, path: str) -> NotFound:
    """The refusal of a URL that is not in the table."""
    return NotFound(f"Unknown request URL: {method} {path}.", code="unknown_url")


def _compile(pattern: str) -> re.Pattern[str]:
    """`/a/{id}/b` as a regular expression with a group `id`."""
    literal = re.sub(r"\{(\w+)(\*?)\}|([^{]+)", _part, pattern)
    return re.compile(literal)


def _part(found: re.Match[str]) -> str:
    name, star, literal = found.groups()
    if literal:
        return re.escape(literal)
    return f"(?P<{name}>{'.+' if star else '[^/]+'})"
