"""How one model wants its context written: tokenizer, chat template, family. Loaded once, shared by all runs."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.backends.ahead import Ahead, begins_afresh
from engine.backends.base import StepSpec
from engine.backends.families import Family, describe_tools, family_of
from engine.backends.grammar import Grammars
from engine.backends.model_facts import ModelFacts
from engine.backends.parser import StreamParser
from engine.backends.template import Contents, Template, TemplateError, Turn
from engine.backends.toolset import ToolSet
from engine.backends.turns import turns_of
from engine.backends.vocabulary import Span, Vocabulary
from engine.errors import RequestError
from engine.items import Answer, Item
from engine.toolspec import Tool

_USER: Final[Turn] = {"role": "user", "content": "Hello"}
_MODEL: Final[Turn] = {"role": "assistant", "content": "Hi"}
_SYSTEM: Final[Turn] = {"role": "system", "content": "Be brief."}
_CALL: Final[Turn] = {
    "role": "assistant",
    "content": "",
    # Nine characters: Mistral's templates refuse ids of another length.
    "tool_calls": [{"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {}}}],
}
_OUTPUT: Final[Turn] = {"role": "tool", "name": "look", "content": "done", "tool_call_id": "call00000"}
# Short conversations that end in a turn of each role: what an extension is rendered behind.
_BEFORE: Final[dict[str, list[Turn]]] = {
    "user": [_USER],
    "system": [_USER, _MODEL, _SYSTEM],
    "tool": [_USER, _CALL, _OUTPUT],
}
Shape = tuple[tuple[tuple[str, str], ...], ...]  # turns of texts only, as a key
_MARK: Final = "\ue002"
_MAX_FRAMES: Final = 256  # kept; an append of up to _MAX_FRAMED turns nearly always has the frame of an earlier one
_MAX_FRAMED: Final = 8
_MAX_TOOL_CONTEXTS: Final = 64  # distinct tool lists kept; a client sends the same one with each of its runs


class Rendered(msgspec.Struct, frozen=True):
    """Text ready to be encoded. `last_role` is the role of its last turn, None when there is none."""

    spans: list[Span]
    last_role: str | None

    @property
    def num_chars(self) -> int:
        """Length of the text in characters."""
        return sum(len(span.text) for span in self.spans)


class ToolContext(msgspec.Struct, frozen=True):
    """A run's tools with the grammars that belong to them; shared by runs with the same tools."""

    tools: ToolSet
    grammars: Grammars


class PromptFormat:
    """Facts and functions of one model. Immutable but for a bounded cache of compiled tool lists.

    close_ids: what ends a turn of the model, its stop token first; header_ids: what begins one.
    """

    def __init__(
        self,
        template: Template,
        vocabulary: Vocabulary,
        family: Family,
        *,
        context_window: int,
        stop_ids: frozenset[int],
        model_id: str,
    ) -> None:
        """Raises TemplateError when the template's conversations cannot be extended at their end."""
        self.vocabulary = vocabulary
        self.family = family
        self.context_window = context_window
        self.stop_ids = stop_ids
        self.model_id = model_id
        self._template = template
        self._system_role = _check_appendable(template)
        header = template.header([_USER])
        self.header_ids = vocabulary.encode_spans([Span(header, True)])
        self.close_ids = vocabulary.encode_spans([Span(_closing(template), True)])
        thought_tag = family.reasoning[0] if family.reasoning else None
        self._starts_in_reasoning = thought_tag is not None and header.rstrip().endswith(thought_tag)
        self._tool_contexts: OrderedDict[bytes, ToolContext] = OrderedDict()
        self._tells_early = begins_afresh(vocabulary.encode)
        self._frame_again = lru_cache(_MAX_FRAMES)(self._frame)

    @classmethod
    def load(cls, folder: Path, *, context_window: int | None = None) -> "PromptFormat":
        """The format of the model in `folder` (`tokenizer.json`, `config.json`, chat template).

        context_window: instead of the model's own, for a backend that computes nothing.
        Raises FileNotFoundError for a missing file, TemplateError for a template that cannot be used.
        """
        facts = ModelFacts.load(folder)
        family = family_of(facts.template)
        vocabulary = Vocabulary.load(folder, family.markup)
        return cls(
            Template(facts.template, facts.special_tokens),
            vocabulary,
            family,
            context_window=context_window or facts.context_window,
            stop_ids=facts.stop_ids(vocabulary),
            model_id=facts.model_id,
        )

    # --- rendering and encoding

    def start(self, instructions: str | None, context: ToolContext, items: Sequence[Item]) -> Rendered:
        """A new context: system turn, tools, items. Raises RequestError."""
        contents = Contents()
        turns = [*self._opening(instructions, contents, context), *self._turns(items, contents)]
        shown = context.tools.documents() if self.family.shows_tools else ()
        try:
            text = self._template.start(turns, [contents.put_json(value, text) for value, text in shown])
        except TemplateError as error:
            raise RequestError(str(error)) from error
        return Rendered(contents.spans(text), _last_role(turns))

    def extend(self, last_role: str | None, items: Sequence[Item]) -> Rendered:
        """What items add after a turn of `last_role`. Raises RequestError."""
        contents = Contents()
        turns = self._turns(items, contents)
        if not turns:
            return Rendered([], None)
        shape = _shape(turns) if self._template.is_timeless else None
        text = self._extend(last_role, turns) if shape is None else self._frame_again(last_role, shape)
        return Rendered(contents.spans(text), _last_role(turns))

    def foresee(self, last_role: str | None, items: Sequence[Answer]) -> list[Span]:
        """What outputs add after a turn of `last_role`, up to the end of the last one's text so far."""
        rendered = self.extend(last_role, [*items[:-1], _marked(items[-1])])
        spans = rendered.spans
        end = next((index for index in range(len(spans) - 1, -1, -1) if _MARK in spans[index].text), 0)
        return [*spans[:end], Span(spans[end].text.rpartition(_MARK)[0], False)] if spans else []

    def _frame(self, last_role: str | None, shape: Shape) -> str:
        """What turns of this shape add. Their contents are stand-ins, so it is the same for all that come."""
        return self._extend(last_role, [dict(turn) for turn in shape])

    def _extend(self, last_role: str | None, turns: Sequence[Turn]) -> str:
        # A template may join neighbouring turns of one role. What is committed cannot be joined to any more: then
        # the new turns are rendered as if they followed a turn of the model.
        follows_call = turns[0]["role"] == "tool"
        fallback = [_USER, _CALL if follows_call and self.family.shows_tools else _MODEL]
        for before in (_BEFORE.get(last_role or ""), fallback):
            try:
                if before:
                    return self._template.extend(before, turns)
            except TemplateError as error:
                if before is fallback:
                    raise RequestError(str(error)) from error
        raise AssertionError("the fallback returns or raises")

    def _turns(self, items: Sequence[Item], contents: Contents) -> list[Turn]:
        return turns_of(items, self.family, contents, system_role=self._system_role)

    def _opening(self, instructions: str | None, contents: Contents, context: ToolContext) -> list[Turn]:
        """The system turn; it presents the tools where the template does not."""
        text = instructions if instructions is not None else self.family.default_instructions
        parts = [contents.put(text)] if text else []
        if context.tools.by_label and not self.family.shows_tools:
            tools = [contents.put(text) for _, text in context.tools.documents()]
            parts.append(describe_tools(self.family, tools))
        return [{"role": "system", "content": "\n\n".join(parts)}] if parts else []

    def encode(self, spans: Sequence[Span]) -> list[int]:
        """The ids of rendered text. Pure, and safe in a thread."""
        return self.vocabulary.encode_spans(spans)

    def new_ahead(self) -> Ahead:
        """Tells the ids of outputs that still grow."""
        return Ahead(self.vocabulary, tells_text=self._tells_early)

    def fewest_tokens(self, num_chars: int) -> int:
        """A lower bound on the ids of so many characters, known without encoding them."""
        return num_chars // self.vocabulary.longest_token

    # --- tools

    def tool_context(
        self, tools: Sequence[Tool], *, parallel: bool = True, text_format: dict[str, Any] | None = None
    ) -> ToolContext:
        """The compiled form of a tool list, from the cache when it was seen before. Raises RequestError."""
        key = msgspec.msgpack.encode((tools, parallel, text_format))
        if found := self._tool_contexts.get(key):
            self._tool_contexts.move_to_end(key)
            return found
        toolset = ToolSet.of(tools)
        grammars = Grammars(self.family, self.vocabulary, toolset, parallel=parallel, text_format=text_format)
        self._tool_contexts[key] = ToolContext(toolset, grammars)
        if len(self._tool_contexts) > _MAX_TOOL_CONTEXTS:
            self._tool_contexts.popitem(last=False)
        return self._tool_contexts[key]

    def new_parser(self, context: ToolContext, step: StepSpec) -> StreamParser:
        """A parser of the step's ids; without callable tools, call syntax is text."""
        may_call = not step.is_summary and bool(context.tools.callable_under(step.tool_choice))
        tools = context.tools if may_call else ToolSet({})
        constraint = context.grammars.constraint(step, after_output=False)
        is_held = constraint is not None and constraint.mode == "always"
        in_reasoning = self._starts_in_reasoning and not is_held
        return StreamParser(self.vocabulary, self.family, tools, in_reasoning=in_reasoning)


def _marked(item: Answer) -> Answer:
    """The output with a mark at the end of its text, where it is one."""
    output = getattr(item, "output", None)
    return msgspec.structs.replace(item, output=output + _MARK) if isinstance(output, str) else item


def _shape(turns: Sequence[Turn]) -> Shape | None:
    """The turns as a key; None when they are many, or hold more than texts."""
    if len(turns) > _MAX_FRAMED or any("tool_calls" in turn for turn in turns):
        return None
    return tuple(tuple(turn.items()) for turn in turns)


def _last_role(turns: Sequence[Turn]) -> str | None:
    return turns[-1]["role"] if turns else None


def _check_appendable(template: Template) -> str:
    """Make sure that turns can be appended. Returns the role of a system message in the middle of a conversation.

    Raises TemplateError when what a turn adds depends on more than its neighbour.
    """
    history = [_USER, _MODEL, _USER, _MODEL]
    if template.start([*history, _USER]) != template.start(history) + template.extend([_USER, _MODEL], [_USER]):
        raise TemplateError("This chat template cannot be extended at its end: later turns change earlier ones.")
    try:
        is_shown = str(_SYSTEM["content"]) in template.extend([_USER, _MODEL], [_SYSTEM])
    except TemplateError:
        is_shown = False
    return "system" if is_shown else "user"


def _closing(template: Template) -> str:
    """What the template writes behind the model's text."""
    return template.start([_USER, {"role": "assistant", "content": _MARK}]).rpartition(_MARK)[2]
