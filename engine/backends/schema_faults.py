"""Why a JSON schema or a tool's own grammar cannot hold a model, in the words and at the place that a client needs."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from engine.backends.lark import error_of, json_rule

# What llguidance says, and the keyword that it is about; a group in the pattern is the keyword itself.
_SAYINGS: Final = (
    (re.compile(r'Unimplemented keys: \["([^"]+)"'), ""),
    (re.compile(r"Invalid type|Expected type"), "type"),
    (re.compile(r"regex parse error"), "pattern"),
    (re.compile(r"Unknown format"), "format"),
    (re.compile(r"multiple of"), "multipleOf"),
    (re.compile(r"Pointer"), "$ref"),
)
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES: Final = ("items", "additionalProperties", "not", "contains")


class Fault(NamedTuple):
    """`place`: the path of the keyword within the schema, such as `.properties.a.not`; may be empty."""

    reason: str
    place: str = ""


def fault_of_rule(rule: str) -> Fault | None:
    """What is wrong with one rule."""
    error = error_of([rule])
    return None if error is None else Fault(_reason(error))


def fault_of_schema(schema: dict[str, Any], *, is_strict: bool) -> Fault | None:
    """What is wrong with a schema, and where."""
    error = error_of([json_rule(schema, is_strict=is_strict)])
    if error is None:
        return None
    place, inner = "", schema
    while found := _deeper(inner, error, is_strict=is_strict):
        place, inner = place + found[0], found[1]
    keyword = _keyword(_reason(error))
    return Fault(_reason(error), f"{place}.{keyword}" if keyword else place)


def _deeper(schema: dict[str, Any], error: str, *, is_strict: bool) -> tuple[str, dict[str, Any]] | None:
    """The schema within this one that has the same fault by itself."""
    for place, inner in _within(schema):
        its = error_of([json_rule(inner, is_strict=is_strict)])
        if its is not None and _reason(its) == _reason(error):
            return place, inner
    return None


def _within(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    children: list[tuple[str, Any]] = []
    for key in _MAPS:
        children += [(f".{key}.{name}", inner) for name, inner in _items(schema.get(key))]
    for key in _LISTS:
        listed = schema.get(key)
        children += [(f".{key}[{index}]", one) for index, one in enumerate(listed if isinstance(listed, list) else ())]
    children += [(f".{key}", schema.get(key)) for key in _ONES]
    yield from ((place, inner) for place, inner in children if isinstance(inner, dict))


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _reason(error: str) -> str:
    """`at 1(8): failed to compile JSON schema: Invalid type: strin` and the grammar below it: keep the reason."""
    said = error.partition("JSON schema: ")[2] or error.partition(": ")[2] or error
    lines = [line for line in said.splitlines() if line.strip() and not re.match(r"\s*(\d+ )?\||\s*\^", line)]
    return " ".join(line.strip() for line in lines).rstrip(".")


def _keyword(reason: str) -> str:
    for saying, keyword in _SAYINGS:
        if found := saying.search(reason):
            return keyword or found[1]
    return ""
