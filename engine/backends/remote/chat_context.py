"""One run's context as messages, for a service whose tokens nobody here can read.

The messages only grow: what the client gives and what the model said are appended. The API has all of them sent each
turn, but only what is new is encoded (`growing.py`). The length in tokens is an estimate until the service has counted.
"""

import copy
import time
from collections.abc import Sequence as ListOf
from typing import Any, Final

import msgspec

from engine.backends.base import Extension
from engine.backends.remote.chat_calls import OpenCall
from engine.backends.remote.chat_messages import ChatMessage, Messages, ReasoningField, call_made, own_message
from engine.backends.remote.chat_tools import ChatTools
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.growing import GrowingBody
from engine.errors import RequestError
from engine.items import Item

CHARS_PER_TOKEN: Final = 4


class _Written(msgspec.Struct, frozen=True):
    """What was prepared: the items, and what they come to after so many messages."""

    items: list[Item]
    num_before: int
    messages: list[ChatMessage]
    open_ids: list[str]


class ChatContext:
    """See the module. `messages`: what it would send."""

    def __init__(
        self,
        instructions: str | None,
        tools: ChatTools,
        reasoning_field: ReasoningField | None,
        window: int | None = None,
    ) -> None:
        """window: most tokens that it may have; None: any number."""
        self.num_tokens = 0
        self.messages: list[ChatMessage] = []
        self._instructions = instructions
        self._tools = tools
        self._reasoning_field: ReasoningField | None = reasoning_field
        self._window = window
        self._open_ids: list[str] = []  # of the model's calls that have no output yet
        self._num_calls = 0
        self._body = GrowingBody("messages", PLAIN)

    # --- items in

    def prepare(self, items: ListOf[Item]) -> Extension:
        """The messages of these items; changes nothing.

        Raises RequestError: with a path such as `[0].content[1]`, or `context_length_exceeded`. What the estimate lets
        pass the service may still refuse, which ends the run; so it is better refused here.
        """
        began = time.perf_counter()
        written = self._write(items)
        num_tokens = self._estimate(written)
        if self._window is not None and self.num_tokens + num_tokens >= self._window:
            raise RequestError(
                f"This model's context has {self._window} tokens. {self.num_tokens} are in use and about {num_tokens} "
                "more do not fit; shorten the input.",
                code="context_length_exceeded",
            )
        return Extension(
            base=self.num_tokens,
            num_items=len(items),
            num_tokens=num_tokens,
            render_ms=(time.perf_counter() - began) * 1e3,
            payload=written,
        )

    def _write(self, items: ListOf[Item]) -> _Written:
        writer = Messages(self._tools.name_of, self._reasoning_field, self._open_ids)
        messages = writer.write(items)
        if not self.messages and self._instructions:
            messages.insert(0, ChatMessage(role="system", content=self._instructions))
        return _Written(list(items), len(self.messages), messages, writer.open_ids)

    def _estimate(self, written: _Written) -> int:
        num_bytes = 0 if written.num_before else self._tools.num_bytes
        num_bytes += sum(map(_num_chars, written.messages))
        return -(-num_bytes // CHARS_PER_TOKEN)

    def commit(self, extension: Extension) -> None:
        """Append what was prepared. Raises ValueError when the context has moved since; nothing changed then."""
        if extension.base != self.num_tokens:
            raise ValueError(f"prepared at {extension.base} tokens, the context has {self.num_tokens}")
        written: _Written = extension.payload
        if written.num_before != len(self.messages):  # it moved, and is as long as it was: lengths are estimates
            written = self._write(written.items)
        self.messages += written.messages
        self._open_ids = written.open_ids
        self.num_tokens += extension.num_tokens

    # --- the model's turn

    def said(self, text: str, thoughts: str, calls: ListOf[OpenCall], num_tokens: int) -> None:
        """Append what the model said. num_tokens: length of the context with it, as far as anybody knows."""
        made = []
        for call in calls:
            self._num_calls += 1
            made.append(call_made(call.id or f"call_{self._num_calls}", call.name, call.arguments))
        self._open_ids = [call.id for call in made]
        message = own_message(text, thoughts, made, self._reasoning_field)
        if message is not None:
            self.messages.append(message)
        self.num_tokens = num_tokens

    @property
    def num_unwritten(self) -> int:
        """Characters that `body` has yet to encode, if the encoding stays the same."""
        return sum(map(_num_chars, self.messages[len(self._body) :]))

    def body(self, fields: dict[str, Any], encoding: Encoding) -> bytes:
        """The request with these other fields. Cost follows what is new, unless the encoding is another one now."""
        if self._body.encoding != encoding:
            self._body = GrowingBody("messages", encoding)
        self._body.extend(self.messages[len(self._body) :])
        return self._body.body(fields)

    # --- another context

    def fork(self) -> "ChatContext":
        """A context with the same messages that goes on by itself."""
        twin = copy.copy(self)
        twin.messages, twin._open_ids, twin._body = self.messages[:], self._open_ids[:], self._body.copy()
        return twin

    def restore(self, items: ListOf[Item], num_tokens: int) -> None:
        """What these items come to, in a new context. num_tokens: its length."""
        self.messages = self._write(items).messages
        self.num_tokens = num_tokens

    def restart(self) -> None:
        """An empty context, with the same instructions and tools to come."""
        self.messages, self._open_ids, self.num_tokens = [], [], 0
        self._body = GrowingBody("messages", self._body.encoding)


def _num_chars(message: ChatMessage) -> int:
    content = message.content
    num_chars = len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content or ())
    calls = message.tool_calls or ()
    return num_chars + sum(len(call.function.name) + len(call.function.arguments) for call in calls) + CHARS_PER_TOKEN
