"""Cuts a text into passages that are found, and read by a model, one by one; and makes queries for them."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

MAX_CHARS: Final = 2_000  # some 500 tokens: a few pages of results fit into any context
_OVERLAP: Final = 200  # what stands on a border is found with what is around it
_MAX_WORDS: Final = 64
_WORD: Final = re.compile(r"\w+")


def passages(text: str) -> Iterator[str]:
    """The passages of a text, in order. They end where a paragraph, a line or a word does, and overlap a little."""
    place = 0
    while place < len(text):
        end = place + MAX_CHARS
        if end < len(text):
            end = _border(text, place + MAX_CHARS // 2, end)
        if passage := text[place:end].strip():
            yield passage
        if end >= len(text):
            return
        place = max(end - _OVERLAP, place + 1)


def _border(text: str, least: int, most: int) -> int:
    for border in ("\n\n", "\n", ". ", " "):
        found = text.rfind(border, least, most)
        if found >= 0:
            return found + len(border)
    return most


def match_expression(queries: Iterable[str]) -> str | None:
    """The queries' words, any of them, as SQLite's full-text search takes it; None when there is no word."""
    words = dict.fromkeys(word.lower() for query in queries for word in _WORD.findall(query))
    return " OR ".join(f'"{word}"' for word in list(words)[:_MAX_WORDS]) or None
