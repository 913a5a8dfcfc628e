"""How the script backend counts a run's context. Here by estimate; `script_prompt.py` has the real tokenizer.

The estimate is characters / 4, at least 1 an item; a sampled piece counts 1.
"""

import copy
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from typing import Final, Protocol

import msgspec

from engine import items
from engine.backends.base import Delta, Extension, Past, RunSpec
from engine.content import text_of
from engine.tokens import TokenLog
from engine.toolspec import Tool

CHARS_PER_TOKEN: Final = 4


class Work(msgspec.Struct):
    """What all `prepare` calls of a run have gone through so far; for benchmarks."""

    num_items: int = 0
    num_tokens: int = 0

    def add(self, extension: Extension) -> None:
        """Count what was touched to make this extension."""
        self.num_items += extension.num_items
        self.num_tokens += extension.num_tokens


class Context(Protocol):
    """The context of one run. `num_kept` is the part of it that was there before what is new since the last step."""

    work: Work

    @property
    def tokens(self) -> TokenLog:
        """The token log; stays empty without a tokenizer."""

    @property
    def num_tokens(self) -> int:
        """The context's length."""

    @property
    def num_kept(self) -> int:
        """How much of it the next step can reuse."""

    @property
    def num_turn_tokens(self) -> int:
        """How many tokens `open_turn` adds."""

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        """Count new items at its end; changes nothing. Raises RequestError for content that cannot be rendered."""

    def length_with(self, extension: Extension) -> int:
        """Length of the context once this is committed."""

    def commit(self, extension: Extension) -> None:
        """Make an extension part of it. Raises ValueError when the context has moved since; nothing changed then."""

    def open_turn(self) -> None:
        """The model is about to be sampled."""

    def sampled(self, deltas: ListOf[Delta], num_pieces: int, *, is_whole: bool) -> None:
        """Add what a step has said; `is_whole` when it came to an end of its own."""

    def fork(self) -> "Context":
        """The same context for another run; it has done no work yet."""

    def restart(self) -> None:
        """Make it empty: the next extension brings instructions and tools again."""

    def restore(self, past: Past) -> None:
        """Bring a new context to where another one was. Raises ValueError when that cannot be done."""


def check_base(extension: Extension, num_tokens: int) -> None:
    """Raises ValueError when the extension was prepared for another context length."""
    if extension.base != num_tokens:
        raise ValueError(f"the context has moved: prepared at {extension.base} tokens, now at {num_tokens}")


class EstimatedContext:
    """The context of a run without a tokenizer. Its first extension brings instructions and tools."""

    num_turn_tokens = 0

    def __init__(self, spec: RunSpec) -> None:
        self.tokens = TokenLog()
        self.work = Work()
        self.num_tokens = 0
        self.num_kept = 0
        self._num_head_tokens = _estimate_head(spec)

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        head = 0 if self.num_tokens else self._num_head_tokens
        extension = Extension(self.num_tokens, len(given), head + sum(map(estimate_tokens, given)))
        self.work.add(extension)
        return extension

    def length_with(self, extension: Extension) -> int:
        return self.num_tokens + extension.num_tokens

    def commit(self, extension: Extension) -> None:
        check_base(extension, self.num_tokens)
        self.num_tokens += extension.num_tokens

    def open_turn(self) -> None:
        pass

    def sampled(self, deltas: ListOf[Delta], num_pieces: int, *, is_whole: bool) -> None:
        self.num_tokens += num_pieces
        self.num_kept = self.num_tokens

    def fork(self) -> "EstimatedContext":
        twin = copy.copy(self)
        twin.tokens, twin.work = TokenLog(), Work()
        return twin

    def restart(self) -> None:
        self.num_tokens = self.num_kept = 0

    def restore(self, past: Past) -> None:
        if self.num_tokens:
            raise ValueError("only a new context can be restored")
        self.num_tokens = self.num_kept = past.num_tokens


def _estimate_head(spec: RunSpec) -> int:
    chars = len(spec.instructions or "") + sum(map(_num_chars, spec.tools))
    return -(-chars // CHARS_PER_TOKEN)


def estimate_tokens(item: items.Item) -> int:
    """Estimated tokens of one item. Images and files in it count nothing."""
    return max(1, sum(map(len, _texts(item))) // CHARS_PER_TOKEN)


def _texts(item: items.Item) -> Iterable[str | bytes]:
    match item:
        case items.Message():
            return (text_of(item.content),)
        case items.FunctionCallOutput() | items.CustomToolCallOutput():
            return (text_of(item.output),)
        case items.FunctionCall():
            return (item.name, item.arguments)
        case items.CustomToolCall():
            return (item.name, item.input)
        case items.ComputerCallOutput():
            return ()
        case _:
            return (items.encode_item(item),)


def _num_chars(tool: Tool) -> int:
    """Of what a model is shown of it."""
    return len(msgspec.json.encode((tool.kind, tool.name, tool.description, tool.parameters, tool.grammar)))
