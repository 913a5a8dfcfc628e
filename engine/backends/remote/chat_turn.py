"""One turn of a chat completion: what is asked for (`link.Turn`), and what its events come to.

It may be asked for again only while nothing of its answer was taken: another answer would begin with other words.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from engine.backends.base import Delta
from engine.backends.remote.chat_chunks import DECODER, Choice, Chunk, Counts, TimeInfo, Timings
from engine.backends.remote.chat_deltas import ChatParser
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.errors import BrokenStream, error_chunk

Decoded = TypeVar("Decoded")
_ANYTHING: Final = msgspec.json.Decoder(Mapping[str, Any])
_DONE: Final = b"[DONE]"
_GIVEN_UP: Final = ("abort", "error")  # vLLM when it is overrun; services in front of others


class ChatTurn:
    """See the module. on_change: is called when there are deltas, or the answer has its end."""

    path = "/chat/completions"

    def __init__(
        self, parser: ChatParser, write: Callable[[Encoding], Awaitable[bytes]], on_change: Callable[[], None]
    ) -> None:
        """write: the request's body."""
        self.parser = parser
        self.num_taken = 0
        self.finish_reason: str | None = None
        self.counts: Counts | None = None
        self.times: TimeInfo | None = None
        self.timings: Timings | None = None
        self._is_done = False
        self._write = write
        self._on_change = on_change
        self._deltas: list[Delta] = []

    @property
    def can_repeat(self) -> bool:
        """See link.Turn."""
        return self.num_taken == 0

    @property
    def is_answered(self) -> bool:
        """See link.Turn."""
        return self._is_done or self.finish_reason is not None

    async def body(self, encoding: Encoding) -> bytes:
        """See link.Turn."""
        return await self._write(encoding)

    def take(self, events: Sequence[bytes]) -> bool:
        """See link.Turn."""
        for data in events:
            if data == _DONE:
                self._is_done = True
            else:
                self._take_chunk(_decoded(data, DECODER), data)
        if self._deltas:
            self._on_change()
        return self._is_done

    def _take_chunk(self, chunk: Chunk, data: bytes) -> None:
        if chunk.is_error and (error := error_chunk(_decoded(data, _ANYTHING))):
            raise error
        self.counts = chunk.usage or self.counts
        self.times = chunk.time_info or self.times
        self.timings = chunk.timings or self.timings
        for choice in chunk.choices or ():
            self._take_choice(choice)

    def _take_choice(self, choice: Choice) -> None:
        if choice.finish_reason in _GIVEN_UP:
            raise BrokenStream(f"the service gave the turn up: {choice.finish_reason}")
        deltas = self.parser.feed(choice)
        self.num_taken += self.parser.has_begun
        self._deltas += deltas
        self.finish_reason = choice.finish_reason or self.finish_reason

    def take_deltas(self) -> list[Delta]:
        """What has come since."""
        deltas, self._deltas = self._deltas, []
        return deltas


def _decoded(data: bytes, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BrokenStream(f"a chunk that cannot be read: {error}") from error
