"""How calls of the built-in tools look. See shapes.py for what each method is for.

The model calls them as functions; the API's items show of the arguments what they mean, so it shows with the whole
call, not while the model writes it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec

from engine.hosted.base import HostedCall, HostedResult, Sketch
from engine.hosted_events import (
    CodeInterpreterCodeDelta,
    CodeInterpreterCodeDone,
    CodeInterpreterCompleted,
    CodeInterpreterInProgress,
    CodeInterpreterInterpreting,
    FileSearchCompleted,
    FileSearchInProgress,
    FileSearchSearching,
    WebSearchCompleted,
    WebSearchInProgress,
    WebSearchSearching,
)

_DELTA_CHARS: Final = 2_000  # code comes in pieces of this, for readers who show it as it comes


class CodeInterpreterShape:
    """`code_interpreter_call`. `container_id` is what the tool's definition chose; `outputs` is the result's."""

    prefix = "ci"

    def opening(self) -> list[Sketch]:
        return [partial(CodeInterpreterInProgress)]

    def piece(self, text: str) -> list[Sketch]:
        return []

    def called(self, call: HostedCall) -> list[Sketch]:
        code = _text(call, "code")
        pieces = [code[place : place + _DELTA_CHARS] for place in range(0, len(code), _DELTA_CHARS)]
        deltas = [partial(CodeInterpreterCodeDelta, delta=piece) for piece in pieces]
        return [*deltas, partial(CodeInterpreterCodeDone, code=code), partial(CodeInterpreterInterpreting)]

    def ended(self, result: HostedResult) -> list[Sketch]:
        return [partial(CodeInterpreterCompleted)] if result.error is None else []

    def item(self, call: HostedCall, result: HostedResult | None) -> dict[str, Any]:
        return {"code": _text(call, "code"), "outputs": None}


class FileSearchShape:
    """`file_search_call`. `results` is the result's, for those who asked for them."""

    prefix = "fs"

    def opening(self) -> list[Sketch]:
        return [partial(FileSearchInProgress)]

    def piece(self, text: str) -> list[Sketch]:
        return []

    def called(self, call: HostedCall) -> list[Sketch]:
        return [partial(FileSearchSearching)]

    def ended(self, result: HostedResult) -> list[Sketch]:
        return [partial(FileSearchCompleted)] if result.error is None else []

    def item(self, call: HostedCall, result: HostedResult | None) -> dict[str, Any]:
        return {"queries": _texts(call, "queries"), "results": None}


OPEN_PAGE: Final = "open_page"
FIND_IN_PAGE: Final = "find_in_page"


class WebSearchShape:
    """`web_search_call`, of three functions: `action.type` says which. `sources` are the result's, if asked for."""

    prefix = "ws"

    def opening(self) -> list[Sketch]:
        return [partial(WebSearchInProgress)]

    def piece(self, text: str) -> list[Sketch]:
        return []

    def called(self, call: HostedCall) -> list[Sketch]:
        return [partial(WebSearchSearching)]

    def ended(self, result: HostedResult) -> list[Sketch]:
        return [partial(WebSearchCompleted)] if result.error is None else []

    def item(self, call: HostedCall, result: HostedResult | None) -> dict[str, Any]:
        return {"action": action_of(call)}


def action_of(call: HostedCall) -> dict[str, Any]:
    """What a call of one of the three functions does."""
    if call.tool.name == OPEN_PAGE:
        return {"type": "open_page", "url": _text(call, "url")}
    if call.tool.name == FIND_IN_PAGE:
        return {"type": "find_in_page", "url": _text(call, "url"), "pattern": _text(call, "pattern")}
    query = _text(call, "query")
    return {"type": "search", "query": query, "queries": [query] if query else []}


def _arguments(call: HostedCall) -> dict[str, Any]:
    """Whatever the model wrote; of a call that has begun, or is no JSON, nothing."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(call: HostedCall, name: str) -> str:
    value = _arguments(call).get(name)
    return value if isinstance(value, str) else ""


def _texts(call: HostedCall, name: str) -> list[str]:
    value = _arguments(call).get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, Iterable) else []
