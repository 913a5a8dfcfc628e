"""The filters of a `file_search` definition: comparisons of a file's attributes, joined by `and` and `or`.

A file has the attributes `path`, `name`, `extension` (`.md`), `size` (bytes) and `modified` (seconds since 1970).
"""

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

import msgspec

Attributes = Mapping[str, str | int]
Value = str | int | float | bool


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One attribute against a value, or against several for `in` and `nin`."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Value | list[Value]


class Compound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters that must all hold, or of which one must. They are read when they are used."""

    type: Literal["and", "or"]
    filters: list[dict[str, Any]]


Filter = Comparison | Compound
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {"eq": eq, "ne": ne, "gt": gt, "gte": ge, "lt": lt, "lte": le}
_MAX_DEPTH: Final = 10


def read_filter(fields: dict[str, Any], depth: int = 0) -> Callable[[Attributes], bool]:
    """What says whether a file passes. Raises ValueError for what is no filter."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"filters are nested more than {_MAX_DEPTH} deep")
    if "filters" in fields:
        compound = msgspec.convert(fields, Compound)
        parts = [read_filter(one, depth + 1) for one in compound.filters]
        join = all if compound.type == "and" else any
        return lambda attributes: join(part(attributes) for part in parts)
    comparison = msgspec.convert(fields, Comparison)
    if isinstance(comparison.value, list) is not (comparison.type in ("in", "nin")):
        raise ValueError(
            f"a filter of type '{comparison.type}' takes {'a list' if 'n' in comparison.type[-2:] else 'one value'}"
        )
    return lambda attributes: _holds(comparison, attributes)


def _holds(comparison: Comparison, attributes: Attributes) -> bool:
    """A file that lacks the attribute, or has one of another kind, differs from everything."""
    found, value = attributes.get(comparison.key), comparison.value
    if isinstance(value, list):
        return (found in value) is (comparison.type == "in")
    if isinstance(found, str) is not isinstance(value, str) or found is None:
        return comparison.type == "ne"
    return _COMPARE[comparison.type](found, value)
