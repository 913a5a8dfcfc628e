"""What a docstring says about a function and its parameters, in the three common styles.

Only what a tool description needs: the text outside of sections, and one description per parameter. Sections that
are not about parameters (Returns, Raises, …) are dropped.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Described(NamedTuple):
    """A function's description and its parameters' by name; what was not said is missing or empty."""

    summary: str
    parameters: dict[str, str]


_SECTIONS: Final = (
    "args|arguments|parameters|params|other parameters|keyword args|keyword arguments|returns|return|yields|raises|"
    "example|examples|note|notes|warnings?|see also|references|attributes|todo"
)
_PARAMETER_SECTIONS: Final = re.compile(r"(keyword )?(args|arguments|param(eter)?s)$|other parameters$")
_GOOGLE_HEAD: Final = re.compile(rf"(?P<name>{_SECTIONS}):\s*$", re.IGNORECASE)
_NUMPY_HEAD: Final = re.compile(rf"(?P<name>{_SECTIONS})\s*$", re.IGNORECASE)
_GOOGLE_ENTRY: Final = re.compile(r"(?P<name>\*{0,2}\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY: Final = re.compile(r"(?P<name>\w+)\s*(:.*)?$")
_REST_ENTRY: Final = re.compile(r":(param|parameter|arg|argument)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)")


def describe(docstring: str | None) -> Described:
    """The description and the parameters' descriptions; empty for no docstring."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    summary: list[str] = []
    parameters: dict[str, str] = {}
    for text, kind in _split(lines):
        if kind is None:
            summary.append(text)
        else:
            parameters |= _entries(text, kind)
    return Described("\n".join(summary).strip(), parameters)


def _split(lines: list[str]) -> Iterator[tuple[str, str | None]]:
    """Lines of plain text as (line, None); whole sections as (body, kind)."""
    at = 0
    while at < len(lines):
        kind, body_at = _head(lines, at)
        if not kind:
            yield lines[at], None
            at += 1
            continue
        end = _section_end(lines, body_at, kind)
        yield "\n".join(lines[body_at:end]), kind
        at = end


def _head(lines: list[str], at: int) -> tuple[str, int]:
    """The section that starts at a line, as (kind, first line of its body), or ("", at)."""
    line = lines[at]
    if line.startswith(":") and re.match(r":\w+", line):
        return "rest", at
    if found := _GOOGLE_HEAD.match(line):
        return _kind("google", found["name"]), at + 1
    underline = lines[at + 1].strip() if at + 1 < len(lines) else ""
    if (found := _NUMPY_HEAD.match(line)) and len(underline) >= 3 and set(underline) == {"-"}:
        return _kind("numpy", found["name"]), at + 2
    return "", at


def _kind(style: str, name: str) -> str:
    return style if _PARAMETER_SECTIONS.match(name.lower()) else "other"


def _section_end(lines: list[str], at: int, kind: str) -> int:
    """Where a section's body ends: at the next head or, for the indented styles, at text back on the margin."""
    first = at + 1 if kind == "rest" else at
    for index in range(first, len(lines)):
        if _head(lines, index)[0]:
            return index
        is_margin = bool(lines[index]) and not lines[index][0].isspace()
        if is_margin and kind in ("google", "rest"):
            return index
    return len(lines)


def _entries(body: str, kind: str) -> dict[str, str]:
    match kind:
        case "google":
            return _read(inspect.cleandoc("\n" + body), _GOOGLE_ENTRY)
        case "numpy":
            return _read(body, _NUMPY_ENTRY)
        case "rest":
            return _read(body, _REST_ENTRY)
        case _:
            return {}


def _read(body: str, entry: re.Pattern[str]) -> dict[str, str]:
    """Entries that start on the margin; indented lines continue the one before."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in body.splitlines():
        if line and not line[0].isspace() and (start := entry.match(line)):
            current = found.setdefault(start["name"].lstrip("*"), [])
            current.append(start.groupdict().get("text") or "")
        else:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}
