"""From text to quantities: `3.5 km`, `5 ft 11 in`, `3 mi + 400 m`, `2 * 3 kg`.

sum      = term { ("+" | "-") term }
term     = [ number "*" ] compound
compound = quantity { quantity }        the parts of a compound are added up
quantity = number unit
"""

import re
from dataclasses import dataclass

from measures.quantity import Quantity

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?)|(?P<name>[A-Za-z]+)|(?P<sign>[-+*]))")


class ParseError(ValueError):
    """The text is no quantity; the message says where it stops being one."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Quantity:
    """The quantity that the text means, in the unit that it names first. Raises ParseError, UnknownUnit."""
    return _Parser(text).sum()


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"unexpected {text[position:].strip()[0]!r} at {position}")
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return found


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def sum(self) -> Quantity:
        total = self._term()
        while sign := self._take("sign"):
            if sign.text == "*":
                raise ParseError(f"a factor must come first, at {sign.position}")
            term = self._term()
            total = total + term if sign.text == "+" else total - term
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            raise ParseError(f"unexpected {token.text!r} at {token.position}")
        return total

    def _term(self) -> Quantity:
        if self._kinds(2) == ["number", "sign"] and self._tokens[self._at + 1].text == "*":
            factor = float(self._tokens[self._at].text)
            self._at += 2
            return self._compound() * factor
        return self._compound()

    def _compound(self) -> Quantity:
        total = self._quantity()
        while self._kinds(2) == ["number", "name"]:
            total = total + self._quantity()
        return total

    def _quantity(self) -> Quantity:
        number, name = self._take("number"), self._take("name")
        if number is None or name is None:
            where = self._tokens[self._at].position if self._at < len(self._tokens) else "the end"
            raise ParseError(f"expected a number and a unit at {where}")
        return Quantity.of(float(number.text), name.text)

    def _kinds(self, count: int) -> list[str]:
        return [token.kind for token in self._tokens[self._at : self._at + count]]

    def _take(self, kind: str) -> _Token | None:
        if self._kinds(1) != [kind]:
            return None
        self._at += 1
        return self._tokens[self._at - 1]
