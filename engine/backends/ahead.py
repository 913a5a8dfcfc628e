"""Tokens of a text that still grows, as far as more text can no longer change them.

A tokenizer looks at what follows: "in" and "put" come out otherwise than "input". So ids are told only up to a place
where it begins afresh whatever comes, which a single space between two visible ASCII characters is for every
tokenizer that cuts text into words first, and so is a line's end between letters or digits. What is told is encoded
once, so the cost follows what is new.

Nothing hangs on it but time: what is told is computed early, and compared with the whole text's ids when that is there.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from engine.backends.vocabulary import Span, Vocabulary

_SAFE: Final = re.compile(r"(?<=[!-~]) (?=[!-~])|(?<=[0-9A-Za-z])\n(?=[0-9A-Za-z])")
_PROBE: Final = "Any line of text 12 34, {with: 'marks'}\nand another"


def last_safe_cut(text: str, start: int) -> int:
    """The last place from `start` on that is safe; `start` when there is none."""
    cut = start
    for found in _SAFE.finditer(text, start):
        cut = found.start()
    return cut


class Ahead:
    """Tells the ids of one growing text; another text is recognised, and begun with."""

    def __init__(self, vocabulary: Vocabulary, *, tells_text: bool) -> None:
        """tells_text: whether `begins_afresh`; else only what stands before the last control token is told."""
        self._vocabulary = vocabulary
        self._tells_text = tells_text
        self._head: list[Span] = []
        self._told = ""  # of the text after the last control token
        self._ids: list[int] = []

    def tell(self, spans: Sequence[Span]) -> list[int]:
        """All ids that are certain of this text, whose last span may still grow."""
        head, text = self._vocabulary.open_run(spans)
        if head != self._head or not text.startswith(self._told):
            self._head, self._told = head, ""
            self._ids = self._vocabulary.encode_spans(head)
        start = len(self._told)
        if self._tells_text and (cut := last_safe_cut(text, start)) > start:
            self._ids = [*self._ids, *self._vocabulary.encode(text[start:cut])]
            self._told = text[:cut]
        return self._ids


def begins_afresh(encode: Callable[[str], list[int]]) -> bool:
    """Whether a tokenizer really does so at the places that are said to be safe: one that marks beginnings does not."""
    parts, start = [], 0
    for found in _SAFE.finditer(_PROBE):
        parts += encode(_PROBE[start : found.start()])
        start = found.start()
    return [*parts, *encode(_PROBE[start:])] == encode(_PROBE)
