"""The arguments of a call, read piece by piece as JSON: from JSON, or from pairs between tags."""

import re
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from engine.backends.call_syntax import CallSyntax, Pairs
from engine.backends.json_scanner import ObjectScanner
from engine.backends.literals import Verdict, follow
from engine.backends.template import to_json
from engine.backends.toolset import parameters_of
from engine.toolspec import Tool


class Piece(NamedTuple):
    """json: what the read text adds to the arguments. size: how much of it is done with."""

    json: str
    size: int
    is_last: bool


class Arguments(Protocol):
    """Reads the text behind a call's head; what a piece is done with is not shown again."""

    def read(self, held: str) -> Piece: ...


def arguments_of(tool: Tool, syntax: CallSyntax) -> Arguments:
    """A reader for one call."""
    return JsonArguments() if syntax.pairs is None else PairArguments(syntax, syntax.pairs, parameters_of(tool))


class JsonArguments:
    """Hands JSON on as it comes, up to the end of the object."""

    def __init__(self) -> None:
        self._scanner = ObjectScanner()

    def read(self, held: str) -> Piece:
        end = self._scanner.scan(held)
        size = len(held) if end is None else end
        return Piece(held[:size], size, end is not None)


class PairArguments:
    """A pair at a time: a value's type is the schema's, and what it may be shows only when it is whole."""

    def __init__(self, syntax: CallSyntax, pairs: Pairs, schema: dict[str, Any]) -> None:
        self._pairs = pairs
        self._properties: dict[str, Any] = schema.get("properties") or {}
        self._behind = syntax.after_arguments or syntax.end + syntax.close
        self._pair = re.compile(
            rf"\s*{re.escape(pairs.before_name)}(.*?)\s*{_lenient(pairs.before_value)}(.*?){_lenient(pairs.after_value)}",
            re.DOTALL,
        )
        self._num_read = 0

    def read(self, held: str) -> Piece:
        pair = self._pair.match(held)
        if pair:
            name, text = pair[1].strip(), pair[2]
            value = to_json(typed(text, self._properties.get(name)))
            json = f"{', ' if self._num_read else '{'}{to_json(name)}: {value}"
            self._num_read += 1
            return Piece(json, pair.end(), False)
        if follow(held, self._pairs.before_name) is not Verdict.OTHER:
            return Piece("", 0, False)  # a pair that is not whole yet
        if follow(held, self._behind) is Verdict.MORE:
            return Piece("", 0, False)
        return Piece("}" if self._num_read else "{}", 0, True)


def _lenient(tag: str) -> str:
    """A pattern of a tag whose line breaks, those beside the text too, may be missing."""
    return r"\s*".join(map(re.escape, re.split(r"\n", tag))) if tag.strip("\n").count("\n") else _at_edges(tag)


def _at_edges(tag: str) -> str:
    core = re.escape(tag.strip("\n"))
    before, after = ("\n?" if edge else "" for edge in (tag.startswith("\n"), tag.endswith("\n")))
    return before + core + after


_WORDS: Final = {"True": True, "False": False, "None": None}


def typed(text: str, schema: Any) -> Any:
    """The value that a text stands for: itself where its schema says string, or it is no JSON."""
    if "string" in _types(schema):
        return text
    stripped = text.strip()
    if stripped in _WORDS:  # templates show them as Python writes them
        return _WORDS[stripped]
    try:
        return msgspec.json.decode(stripped)
    except msgspec.DecodeError:
        return text


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema names, at its top."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    types = set(named) if isinstance(named, list) else {named} if isinstance(named, str) else set()
    if any(isinstance(value, str) for value in (*schema.get("enum", ()), schema.get("const"))):
        types.add("string")
    for key in ("anyOf", "oneOf", "allOf"):
        types = types.union(*map(_types, schema.get(key) or ()))
    return types
