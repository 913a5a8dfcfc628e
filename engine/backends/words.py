"""Texts to ids word by word, each word encoded once: several times as fast as the tokenizer where texts are short.

A byte-level tokenizer splits a text by a regular expression and encodes each piece ("word") for itself, so the ids of
a text are those of its words, and most words of a tool's output came before. This holds for the tokenizers whose
expression is listed here; texts that are not ASCII are left to the tokenizer, since what it takes for a letter depends
on its version of Unicode.
"""

import re
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from tokenizers.models import Model

MAX_WORDS: Final = 8192  # kept: 1 MB as words are, 10 MB at worst
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

    def __init__(self, pattern: re.Pattern[str], model: Model, alphabet: dict[int, str]) -> None:
        """model: a tokenizer's own; alphabet: how it writes each byte."""

        def encode_word(word: str) -> tuple[int, ...]:
            return tuple(token.id for token in model.tokenize(word.translate(alphabet)))

        self._split = pattern.findall
        self._encode_word = lru_cache(MAX_WORDS)(encode_word)

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text, which must be ASCII; None when it has a word that is too long to be kept."""
        words: list[str] = self._split(text)
        if max(map(len, words), default=0) > MAX_WORD_CHARS:
            return None
        return list(chain.from_iterable(map(self._encode_word, words)))
