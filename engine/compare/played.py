"""What a run took: time, bytes on the wire, and what the server had to do again."""

from dataclasses import dataclass, field
from typing import Any, Final

import trio

_COUNTED: Final = ("items_new", "tokens_new", "tokens_reused", "tokens_prefilled")
_PREPARED: Final = ("validate_ms", "render_ms", "tokenize_ms")


@dataclass
class Played:
    """One run by one design. `items` are the model's, in order."""

    lifecycle: str
    items: list[dict[str, Any]] = field(default_factory=list)
    wall_ms: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    num_steps: int = 0
    items_rendered: int = 0
    tokens_rendered: int = 0
    tokens_reused: int = 0
    tokens_prefilled: int = 0
    prepare_ms: float = 0.0

    def count(self, timing: dict[str, Any]) -> None:
        """Add a step's `timing.step`."""
        items, tokens, reused, prefilled = (timing[name] for name in _COUNTED)
        self.num_steps += 1
        self.items_rendered += items
        self.tokens_rendered += tokens
        self.tokens_reused += reused
        self.tokens_prefilled += prefilled
        self.prepare_ms += sum(timing[name] for name in _PREPARED)


class CountingStream(trio.abc.Stream):
    """A stream that adds up what goes through it."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self.bytes_sent = 0
        self.bytes_received = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        self.bytes_sent += len(data)
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's."""
        data = await self._inner.receive_some(max_bytes)
        self.bytes_received += len(data)
        return data

    async def aclose(self) -> None:
        """Close the stream underneath."""
        await self._inner.aclose()
