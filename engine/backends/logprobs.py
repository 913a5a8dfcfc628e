"""Log-probabilities beside the text they belong to, though text comes out later than its tokens came in.

A tokenizer cuts characters in two and a parser holds back what could become a tag, so a token is remembered by the
stretch of characters that it brought, and is given out with the first text that has one of them. A token that brought
only a part of a character belongs to the one that it is becoming. What turns out to be no text takes its tokens along.
"""

from collections import deque
from typing import NamedTuple

from engine.backends.chance import Chance
from engine.backends.vocabulary import Vocabulary
from engine.content import TokenLogprob, TopLogprob


class _Placed(NamedTuple):
    start: int
    end: int
    token_id: int
    chance: Chance


class PlacedTokens:
    """A step's tokens by the characters they brought, counted from the step's start."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[_Placed] = deque()
        self._num_chars = 0

    def add(self, token_id: int, chance: Chance, num_chars: int) -> None:
        """A token that completed so many characters; 0 for one that only began or went on with one."""
        start = self._num_chars
        self._num_chars += num_chars
        self._waiting.append(_Placed(start, max(self._num_chars, start + 1), token_id, chance))

    def add_text(self, num_chars: int) -> None:
        """Characters that no token completed: what is left of one that was cut off."""
        self._num_chars += num_chars

    def take(self, num_chars: int, num_after: int) -> tuple[TokenLogprob, ...]:
        """The tokens of the text that ends `num_after` characters before the last one; none comes twice.

        To be called for one text after the other; tokens before this text and in no text are forgotten.
        """
        end = self._num_chars - num_after
        found = []
        while self._waiting and self._waiting[0].start < end:
            placed = self._waiting.popleft()
            if placed.end > end - num_chars:
                found.append(self._logprob(placed))
        return tuple(found)

    def _logprob(self, placed: _Placed) -> TokenLogprob:
        token, data = self._written(placed.token_id)
        top = [TopLogprob(*self._written(token_id), logprob) for token_id, logprob in placed.chance.top]
        return TokenLogprob(token, data, placed.chance.logprob, top)

    def _written(self, token_id: int) -> tuple[str, list[int]]:
        data = self._vocabulary.bytes_of(token_id)
        return data.decode(errors="backslashreplace"), list(data)
