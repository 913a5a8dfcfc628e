"""Which texts there are to look at in an item, and in what a model writes as a call's arguments."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from engine.content import text_of
from engine.items import (
    Answer,
    ApplyPatchCall,
    Compaction,
    CompactionTrigger,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Hosted,
    Item,
    ItemReference,
    LocalShellCall,
    McpApprovalRequest,
    Message,
    Reasoning,
    ShellCall,
    ToolSearchCall,
)
from engine.safety.config import Place

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def texts_of(item: Item) -> Iterator[tuple[Place, str]]:
    """The texts of an item that a client gives, with the place they count as. Images and files have none."""
    place: Place = "tool_output" if isinstance(item, Answer) else "input"
    yield from ((place, text) for text in _texts(item) if text)


def _texts(item: Item) -> Iterator[str]:
    match item:
        case Message():
            yield text_of(item.content)
        case Reasoning():
            yield from (part.text for part in [*item.summary, *(item.content or ())])
        case FunctionCall() | McpApprovalRequest():
            yield from argument_texts(item.arguments)
        case CustomToolCall():
            yield item.input
        case LocalShellCall() | ShellCall():
            yield from strings_of(item.action)
        case ApplyPatchCall():
            yield from strings_of(item.operation)
        case ComputerCall():
            yield from strings_of([item.action or (), item.actions or ()])
        case ToolSearchCall():
            yield from strings_of(item.arguments)
        case FunctionCallOutput() | CustomToolCallOutput():
            yield text_of(item.output)
        case Hosted():
            yield from strings_of(item.data)
        case ComputerCallOutput() | Compaction() | CompactionTrigger() | ItemReference():
            return  # a picture; or it stands for items that are looked at themselves
        case _:
            yield from strings_of(msgspec.to_builtins(item))


def argument_texts(arguments: str) -> list[str]:
    """Arguments as they are written and, where that differs, as whoever parses their JSON will read them.

    Unescaped as a text and not parsed: what is no JSON, or names a key twice, has no other way past.
    """
    if "\\" not in arguments:
        return [arguments]
    unescaped = _ESCAPE.sub(_unescape, arguments)
    return [arguments, unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")]


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _SHORT_ESCAPES.get(escaped, escaped)


def strings_of(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys too, in order."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as pairs:
                waiting += [part for pair in reversed(pairs.items()) for part in reversed(pair)]
            case list() | tuple() as values:
                waiting += reversed(values)
