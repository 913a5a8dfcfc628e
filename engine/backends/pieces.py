"""Scripted text cut into pieces that stand for tokens: splitting, filler of a given length, placeholders."""

import re
from collections.abc import Mapping
from typing import Final

# Leading blanks and at most five letters: about four characters a piece, as tokenizers have it for English.
_PIECE: Final = re.compile(r"\s*\S{1,5}|\s+")

_FILLER_TEXT: Final = """
The run stays open while a tool is at work, and it goes on as soon as the output has come.
Nothing that was said before is read again, so a long history costs no more than a short one.
These words were not inferred by a model: they fill the place of an answer at a chosen speed.
"""
_FILLER: Final = _FILLER_TEXT.split()

PLACEHOLDERS: Final = frozenset({"last_output", "outputs", "last_user", "items", "turn", "step", "index"})
DEFAULT_LIMIT: Final = 1000  # characters that one placeholder may bring in, unless it says `{name:limit}`
_PLACEHOLDER: Final = re.compile(r"\{(\{[a-z_]+(?::\d+)?\})\}|\{([a-z_]+)(?::(\d+))?\}")


def split_pieces(text: str) -> list[str]:
    """The pieces of a text, in order; joined they give the text again."""
    return _PIECE.findall(text)


def filler_words(count: int) -> list[str]:
    """Pieces of a deterministic text of `count` words."""
    rounds = count // len(_FILLER) + 1
    return split_pieces(" ".join((_FILLER * rounds)[:count]))


def filler_pieces(count: int) -> list[str]:
    """Exactly `count` pieces of a deterministic text. Equal pieces are the same objects."""
    once = split_pieces("".join(" " + word for word in _FILLER))
    pieces = (once * (count // len(once) + 1))[:count]
    if pieces:
        pieces[0] = pieces[0].lstrip()
    return pieces


def placeholders(text: str) -> set[str]:
    """Names of the placeholders `{name}` or `{name:limit}` in a text, known or not."""
    return {match[2] for match in _PLACEHOLDER.finditer(text) if match[2]}


def has_braces_to_fill(text: str) -> bool:
    """Whether `fill` would change the text."""
    return _PLACEHOLDER.search(text) is not None


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced; `{{name}}` becomes `{name}`. Raises KeyError for an unknown name."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        return values[match[2]][: int(match[3] or DEFAULT_LIMIT)]

    return _PLACEHOLDER.sub(one, text)
