"""Texts to ids word by word, each word encoded once: twice as fast as the tokenizer where texts are short.

A byte-level tokenizer splits a text by a regular expression and encodes each piece ("word") for itself, so the ids of
a text are those of its words, and most words of a tool's output came before. This holds for the tokenizers whose
expression is listed here; texts that are not ASCII are left to the tokenizer, since what it takes for a letter depends
on its version of Unicode.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

MAX_WORDS: Final = 16_384  # kept, about 3 MB; then all are forgotten
MAX_WORD_CHARS: Final = 32  # longer ones hardly ever come twice

# Expressions as tokenizer files have them, and what they mean for ASCII. Numbers are one digit (Qwen) or up to three
# (Llama 3).
_REST: Final = r"\s+(?!\S)|\s+"
_GPT2: Final = rf"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|{_REST}"
_LATER: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _REST
)
_LATER_ASCII: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|%s| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|" + _REST
)
_SPLITS: Final = {
    _LATER % r"\p{N}": _LATER_ASCII % "[0-9]",
    _LATER % r"\p{N}{1,3}": _LATER_ASCII % "[0-9]{1,3}",
}


def word_pattern(pre_tokenizer: dict[str, Any] | None) -> re.Pattern[str] | None:
    """What splits ASCII text as this `pre_tokenizer` of a tokenizer file does; None when it is not a known one."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return re.compile(_GPT2, re.ASCII)
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if pattern in _SPLITS:
            return re.compile(_SPLITS[pattern], re.ASCII)
        case _:
            return None


class WordEncoder:
    """Encodes ASCII texts. Safe to use from several threads."""

    def __init__(self, pattern: re.Pattern[str], encode_all: Callable[[list[str]], Sequence[Sequence[int]]]) -> None:
        """encode_all: the tokenizer, for several words at once."""
        self._split = pattern.findall
        self._encode_all = encode_all
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, which must be ASCII."""
        words: list[str] = self._split(text)
        found = list(map(self._known.get, words))
        if None in found:
            new = self._learn({word for word, ids in zip(words, found, strict=True) if ids is None})
            found = [new[word] if ids is None else ids for word, ids in zip(words, found, strict=True)]
        return list(chain.from_iterable(ids for ids in found if ids))

    def _learn(self, words: set[str]) -> dict[str, tuple[int, ...]]:
        ordered = list(words)
        new = {word: tuple(ids) for word, ids in zip(ordered, self._encode_all(ordered), strict=True)}
        if len(self._known) + len(new) > MAX_WORDS:
            self._known.clear()
        self._known.update((word, ids) for word, ids in new.items() if len(word) <= MAX_WORD_CHARS)
        return new
