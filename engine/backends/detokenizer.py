"""Token ids to text as they come: a character is given out once all of its bytes are there, and never broken."""

import codecs
from collections.abc import Iterable

from engine.backends.vocabulary import Vocabulary


class Detokenizer:
    """Decodes one step's ids. Control tokens carry no text, but for those named in `shown`."""

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; what is left of a character waits for the next ones."""
        return self._decoder.decode(b"".join(map(self.bytes_of, ids)))

    def close(self) -> str:
        """What is left: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)

    def bytes_of(self, token_id: int) -> bytes:
        """What the id adds to the text; empty for a control token that is not shown."""
        vocabulary = self._vocabulary
        if vocabulary.is_control(token_id) and token_id not in self._shown:
            return b""
        return vocabulary.bytes_of(token_id)
