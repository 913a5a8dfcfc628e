"""A pattern taken apart as far as a stream needs to know it: its longest match, and what its matches begin with.

The syntax is RE2's, less what has no bound (`*`, `+`, `{3,}`) or looks at the ends of a text (`^`, `$`, `\\A`, `\\z`):
a stream has to know how much of its end could still become a match. Matching itself is RE2's business (patterns.py).

A *beginning* is any text that more text could make a match of, the empty one included. Word boundaries count as met
there, because whether the last one is depends on what comes next.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import re2

_QUANTIFIER: Final = re.compile(r"\{(\d+)(,(\d*))?\}")
_CHAR_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_LONG_ESCAPE: Final = re.compile(r"\\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|[pP]\{\^?\w+\}|[pP]\w)")
_UNSUPPORTED_ESCAPES: Final = frozenset("AzZQECk0123456789")


class Expression(NamedTuple):
    """source: a group-free form of the pattern. longest: of its matches, in characters.

    has_boundary: it asks for a word boundary, so that a match may hang on the character behind it.
    """

    source: str
    longest: int
    beginnings: str
    has_boundary: bool


class _Part(NamedTuple):
    """bare: the source without word boundaries. is_char: it matches one character, always."""

    source: str
    bare: str
    longest: int
    beginnings: str
    is_char: bool = False
    has_boundary: bool = False


def parse_expression(pattern: str) -> Expression:
    """The pattern taken apart. Raises ValueError that says what is wrong with it, and where."""
    compile_source(pattern)
    parser = _Parser(pattern)
    part = parser.alternatives()
    parser.expect_end()
    if compile_source(part.bare).fullmatch(""):
        raise ValueError(f"{pattern!r} matches the empty text")
    compile_source(part.beginnings)
    return Expression(part.source, part.longest, part.beginnings, part.has_boundary)


def compile_source(source: str, *, ignore_case: bool = False) -> "re2._Regexp":
    """RE2's form of a source. Raises ValueError with RE2's reason."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(source, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        shown = source if len(source) < 200 else f"{source[:200]}…"
        raise ValueError(f"{shown!r}: {reason}") from error


class _Parser:
    """Reads what RE2 has accepted already, so only what it means for a stream can be wrong."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self) -> _Part:
        """Up to the end, or to the parenthesis that closes the group."""
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        return _Part(
            _either(part.source for part in parts),
            _either(part.bare for part in parts),
            max(part.longest for part in parts),
            _either(part.beginnings for part in parts),
            has_boundary=any(part.has_boundary for part in parts),
        )

    def expect_end(self) -> None:
        if self._at < len(self._pattern):
            raise self._refused("a parenthesis that closes nothing")

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._pattern) and self._peek() not in "|)":
            parts.append(self._repeated(self._atom()))
        return _joined(parts)

    def _atom(self) -> _Part:
        char = self._peek()
        readers: dict[str, Callable[[], _Part]] = {"(": self._group, "[": self._char_class, "\\": self._escape}
        if char in readers:
            return readers[char]()
        if char in "^$":
            raise self._refused(f"'{char}': a stream has no lines")
        self._at += 1
        return _char(char if char == "." else re2.escape(char))

    def _group(self) -> _Part:
        self._at += 1
        if self._take("?") and not self._take(":"):
            raise self._refused("a group with a name or flags; write (…) or (?:…)")
        part = self.alternatives()
        if not self._take(")"):
            raise self._refused("a group that does not end")
        return part._replace(source=f"(?:{part.source})", bare=f"(?:{part.bare})", beginnings=f"(?:{part.beginnings})")

    def _char_class(self) -> _Part:
        match = _CHAR_CLASS.match(self._pattern, self._at)
        if match is None:
            raise self._refused("a character class that does not end")
        self._at = match.end()
        return _char(match.group())

    def _escape(self) -> _Part:
        if match := _LONG_ESCAPE.match(self._pattern, self._at):
            self._at = match.end()
            return _char(match.group())
        escaped = self._pattern[self._at : self._at + 2]
        if escaped[1:] in _UNSUPPORTED_ESCAPES:
            raise self._refused(f"'{escaped}', which is not supported")
        self._at += 2
        return _Part(escaped, "", 0, "", has_boundary=True) if escaped[1:] in ("b", "B") else _char(escaped)

    def _repeated(self, part: _Part) -> _Part:
        """The part with the quantifier behind it, if one is there. Which match is preferred does not matter here."""
        least, most = 1, 1
        if self._peek() in ("*", "+"):
            raise self._refused(f"'{self._peek()}', which has no upper bound; write {{1,100}}")
        if match := _QUANTIFIER.match(self._pattern, self._at):
            least = int(match[1])
            if match[2] and not match[3]:
                raise self._refused(f"'{match[0]}', which has no upper bound; write {{{least},100}}")
            most = int(match[3]) if match[3] else least
            self._at = match.end()
        elif self._take("?"):
            least = 0
        else:
            return part
        self._take("?")
        return _times(part, least, most)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        is_there = self._peek() == char
        self._at += is_there
        return is_there

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"{self._pattern!r} has, at character {self._at}, {what}")


def _char(source: str) -> _Part:
    return _Part(source, source, 1, f"{source}?", is_char=True)


def _either(sources: Iterable[str]) -> str:
    return f"(?:{'|'.join(sources)})"


def _joined(parts: Sequence[_Part]) -> _Part:
    """One after the other. A beginning of it is a beginning of the first, or the first and a beginning of the rest."""
    if len(parts) == 1:
        return parts[0]
    beginnings = ""
    for part in reversed(parts):
        if part.is_char:
            beginnings = f"(?:{part.bare}{beginnings})?"
        else:
            beginnings = _either([part.bare + beginnings, part.beginnings])
    return _Part(
        "".join(part.source for part in parts),
        "".join(part.bare for part in parts),
        sum(part.longest for part in parts),
        beginnings,
        has_boundary=any(part.has_boundary for part in parts),
    )


def _times(part: _Part, least: int, most: int) -> _Part:
    times = f"{{{least},{most}}}"
    if part.is_char:
        beginnings = f"{part.bare}{{0,{most}}}"
    elif most > 1:
        beginnings = f"(?:{part.bare}){{0,{most - 1}}}(?:{part.beginnings})"
    else:
        beginnings = part.beginnings if most else ""
    return _Part(
        f"(?:{part.source}){times}",
        f"(?:{part.bare}){times}",
        part.longest * most,
        beginnings,
        has_boundary=part.has_boundary,
    )
