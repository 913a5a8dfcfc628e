"""Scripted runs with a model's real tokenizer: everything is rendered and encoded as that model would want it.

`PromptContext` does it once per new item. `UncachedContext` is the benchmarks' control: it renders and encodes the
whole history at every prepare, as a server does that keeps items and no tokens.
"""

import copy
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from itertools import groupby
from typing import Any

from engine import items
from engine.backends.base import CallDelta, CallStart, Delta, Extension, Past, ReasoningDelta, RunSpec, TextDelta
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.script_context import Work, check_base
from engine.backends.turns import call_arguments, call_label
from engine.backends.vocabulary import Span
from engine.content import OutputText, ReasoningText, text_of
from engine.tokens import TokenLog


class PromptContext:
    """A context that only grows: tokens that are in it are never made again."""

    def __init__(self, form: PromptFormat, spec: RunSpec) -> None:
        """Raises RequestError for tools that the model cannot be shown."""
        self.work = Work()
        self.num_kept = 0
        self._form = form
        self._prompt = Prompt(form, spec)

    @property
    def tokens(self) -> TokenLog:
        return self._prompt.tokens

    @property
    def num_tokens(self) -> int:
        return len(self._prompt.tokens)

    @property
    def num_turn_tokens(self) -> int:
        return self._prompt.num_turn_tokens

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        extension = await self._prompt.prepare(given)
        self.work.add(extension)
        return extension

    def length_with(self, extension: Extension) -> int:
        return self.num_tokens + extension.num_tokens

    def commit(self, extension: Extension) -> None:
        self._prompt.commit(extension)

    def open_turn(self) -> None:
        self._prompt.open_turn()

    def sampled(self, deltas: ListOf[Delta], num_pieces: int, *, is_whole: bool) -> None:
        self._prompt.sampled(_encode_turn(self._form, deltas, is_whole=is_whole))
        self.num_kept = self.num_tokens

    def fork(self) -> "PromptContext":
        twin = copy.copy(self)
        twin._prompt, twin.work = self._prompt.fork(), Work()
        return twin

    def restart(self) -> None:
        self._prompt.restart()
        self.num_kept = 0

    def restore(self, past: Past) -> None:
        self._prompt.restore(past.spans)
        self.num_kept = self.num_tokens


class UncachedContext:
    """A context that is made anew at each prepare; an extension is all of it. `tokens` begins anew with each commit."""

    num_kept = 0  # nothing is reused

    def __init__(self, form: PromptFormat, spec: RunSpec) -> None:
        """Raises RequestError for tools that the model cannot be shown."""
        self.work = Work()
        self.tokens = TokenLog()
        self._form = form
        self._spec = spec
        self._history: list[items.Item] = []
        Prompt(form, spec)  # for its errors

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_turn_tokens(self) -> int:
        return len(self._form.header_ids)

    async def prepare(self, given: ListOf[items.Item]) -> Extension:
        history = [*self._history, *given]
        whole = await Prompt(self._form, self._spec).prepare(history)
        self.work.add(whole)
        return Extension(
            base=self.num_tokens,
            num_items=whole.num_items,
            num_tokens=whole.num_tokens,
            token_ids=whole.token_ids,
            render_ms=whole.render_ms,
            tokenize_ms=whole.tokenize_ms,
            payload=history,
        )

    def length_with(self, extension: Extension) -> int:
        return extension.num_tokens

    def commit(self, extension: Extension) -> None:
        check_base(extension, self.num_tokens)
        self._history = extension.payload
        self.tokens = TokenLog()
        self.tokens.give(extension.token_ids)

    def open_turn(self) -> None:
        self.tokens.give(self._form.header_ids)

    def sampled(self, deltas: ListOf[Delta], num_pieces: int, *, is_whole: bool) -> None:
        self._history += own_items(deltas)
        self.tokens.sample(_encode_turn(self._form, deltas, is_whole=is_whole))

    def fork(self) -> "UncachedContext":
        twin = copy.copy(self)
        twin.tokens, twin.work, twin._history = self.tokens.copy(), Work(), self._history[:]
        return twin

    def restart(self) -> None:
        self.tokens, self._history = TokenLog(), []

    def restore(self, past: Past) -> None:
        """Raises ValueError always: this context is made of items, and the model's own are not in `past`."""
        raise ValueError("a run without the token cache cannot be restored")


def own_items(deltas: ListOf[Delta]) -> list[items.Item]:
    """What a step said, as items. Their call ids are empty: those are minted further up."""
    made: list[items.Item] = []
    call: CallStart | None = None
    for kind, group in groupby(deltas, type):
        first, *rest = group
        text = "".join(getattr(delta, "text", "") for delta in (first, *rest))
        if isinstance(first, CallStart):
            call = first
            made.append(_call(call, ""))  # it may be cut off before its arguments
        elif kind is ReasoningDelta:
            made.append(items.Reasoning(content=[ReasoningText(text=text)]))
        elif kind is TextDelta:
            made.append(items.Message(role="assistant", content=[OutputText(text=text)]))
        elif call is not None and text:
            made[-1] = _call(call, text)
    return made


def _call(start: CallStart, text: str) -> items.FunctionCall | items.CustomToolCall:
    fields: dict[str, Any] = {"call_id": "", "name": start.name, "namespace": start.namespace}
    if start.type == "custom_tool_call":
        return items.CustomToolCall(input=text, **fields)
    return items.FunctionCall(arguments=text, **fields)


def _encode_turn(form: PromptFormat, deltas: ListOf[Delta], *, is_whole: bool) -> list[int]:
    """The ids that a model would have sampled to say this; a whole turn ends with its stop token."""
    spans = list(_spans(form, own_items(deltas)))
    if deltas and isinstance(deltas[-1], CallStart | CallDelta):
        del spans[-1:]  # cut off inside a call: it was not closed
    ids = form.encode(spans)
    return [*ids, *form.close_ids[:1]] if is_whole else ids


def _spans(form: PromptFormat, said: ListOf[items.Item]) -> Iterator[Span]:
    family, joint = form.family, ""
    for item in said:
        match item:
            case items.Reasoning(content=[ReasoningText(text=text)]) if family.reasoning:
                yield from (Span(family.reasoning[0], True), Span(text, False), Span(family.reasoning[1], True))
            case items.Message():
                yield Span(text_of(item.content), False)
            case items.FunctionCall() | items.CustomToolCall():
                yield Span(joint, True)
                for text, is_markup in family.calls.write(call_label(item), call_arguments(item)):
                    yield Span(text, is_markup)
        joint = family.calls.between_blocks
