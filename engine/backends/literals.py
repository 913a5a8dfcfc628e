"""Whether text begins with a literal, white space apart; and if not yet, whether it still may."""

import re
from enum import Enum
from typing import Final

_ATOM: Final = re.compile(r"\s+|[{}\[\]:,]|[^\s{}\[\]:,]+")
_PUNCTUATION: Final = frozenset("{}[]:,")


class Verdict(Enum):
    """MORE: what is there is the beginning of it. OTHER: it is something else."""

    MORE = "more"
    OTHER = "other"


def follow(text: str, literal: str) -> int | Verdict:
    """Where in `text` the literal ends. White space in both counts for nothing."""
    at = 0
    for char in literal:
        if char.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return Verdict.MORE
        if text[at] != char:
            return Verdict.OTHER
        at += 1
    return at


def lenient(literal: str) -> str:
    """A pattern of the literal with white space as it may come, around punctuation and where there is some."""
    parts = []
    for atom in _ATOM.findall(literal):
        if atom.isspace():
            parts.append(r"\s*")
        else:
            parts.append(rf"\s*{re.escape(atom)}\s*" if atom in _PUNCTUATION else re.escape(atom))
    return "".join(parts)
