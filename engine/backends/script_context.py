"""How the script backend counts a run's context: by estimate, or with a real tokenizer.

The estimate is characters / 4, at least 1 an item; a sampled piece counts 1.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from typing import Protocol

import msgspec

from engine import items
from engine.backends.base import Delta, Extension, RunSpec
from engine.tokens import TokenLog

CHARS_PER_TOKEN = 4


class Work(msgspec.Struct):
    """What all `prepare` calls of a run have touched so far; for benchmarks."""

    num_items: int = 0
    num_tokens: int = 0


class Context(Protocol):
    """The context of one run."""

    tokens: TokenLog
    work: Work

    @property
    def num_tokens(self) -> int:
        """Its length."""

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        """Count new items at its end; changes nothing. Raises RequestError for content it cannot render."""

    def commit(self, extension: Extension) -> None:
        """Make an extension part of it. Raises ValueError when the context has moved since."""

    def sampled(self, deltas: ListOf[Delta], num_pieces: int) -> None:
        """Add what the model said in a step, or in the part of it that was sampled."""


class EstimatedContext:
    """Context of a run without a tokenizer."""

    def __init__(self, spec: RunSpec) -> None:
        self.tokens = TokenLog()
        self.work = Work()
        self.num_tokens = 0
        self._num_head_tokens = _estimate_head(spec)

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        """The first extension also brings instructions and tools."""
        head = 0 if self.num_tokens else self._num_head_tokens
        count = head + sum(map(estimate_tokens, given))
        self.work.num_items += len(given)
        self.work.num_tokens += count
        return Extension(self.num_tokens, len(given), count)

    def commit(self, extension: Extension) -> None:
        if extension.base != self.num_tokens:
            raise ValueError(f"the context has moved: prepared at {extension.base}, now at {self.num_tokens}")
        self.num_tokens += extension.num_tokens

    def sampled(self, deltas: ListOf[Delta], num_pieces: int) -> None:
        self.num_tokens += num_pieces


def _estimate_head(spec: RunSpec) -> int:
    chars = len(spec.instructions or "") + sum(map(len, map(msgspec.json.encode, spec.tools)))
    return -(-chars // CHARS_PER_TOKEN)


def estimate_tokens(item: items.Item) -> int:
    """Estimated tokens of one item; images and files count as nothing but the item itself."""
    return max(1, sum(map(len, _texts(item))) // CHARS_PER_TOKEN)


def _texts(item: items.Item) -> Iterable[str | bytes]:
    match item:
        case items.Message():
            return (items.text_of(item.content),)
        case items.FunctionCallOutput() | items.CustomToolCallOutput():
            return (items.text_of(item.output),)
        case items.FunctionCall():
            return (item.name, item.arguments)
        case items.CustomToolCall():
            return (item.name, item.input)
        case items.ComputerCallOutput():
            return ()
        case _:
            return (items.encode_item(item),)
