"""Reads the answer of a search provider: SearXNG's JSON, and what others call the same things; else text."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from engine.hosted.fetch import Page

# Where providers keep the list: SearXNG and many others, Brave, Google, Serper.
_LISTS: Final = (("results",), ("web", "results"), ("items",), ("organic",))
_URLS: Final = ("url", "link", "href")
_TITLES: Final = ("title", "name")
_SNIPPETS: Final = ("content", "snippet", "description", "body")
_MAX_SNIPPET_CHARS: Final = 1_000


class WebResult(msgspec.Struct, frozen=True):
    """One result."""

    url: str
    title: str
    snippet: str


def results_of(page: Page) -> list[WebResult] | None:
    """The results, in the provider's order; None for an answer that is no JSON with a list of them."""
    try:
        answer = msgspec.json.decode(page.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    for path in _LISTS:
        found = _at(answer, path)
        if isinstance(found, list):
            return list(_read(found))
    return None


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _read(entries: list[Any]) -> Iterator[WebResult]:
    for entry in entries:
        if isinstance(entry, dict) and (url := _first(entry, _URLS)):
            snippet = _first(entry, _SNIPPETS)[:_MAX_SNIPPET_CHARS]
            yield WebResult(url, _first(entry, _TITLES) or url, snippet)


def _first(entry: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of these that is a text, on one line."""
    found = next((entry[name] for name in names if isinstance(entry.get(name), str)), "")
    return " ".join(found.split())
