"""How one model wants its context written: tokenizer, chat template, family. Loaded once, shared by all runs."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.backends.ahead import Ahead, begins_afresh
from engine.backends.base import StepSpec
from engine.backends.families import BY_TRANSFORMERS, HERMES_IN_TEXT, Family, describe_tools, family_named, family_of
from engine.backends.grammar import Grammars
from engine.backends.harmony import HarmonyParser
from engine.backends.headers import Headers
from engine.backends.manners import manners_of
from engine.backends.model_facts import ModelFacts
from engine.backends.parser import StreamParser
from engine.backends.template import MARK, Contents, Template, TemplateError, Turn, Variables
from engine.backends.text_reader import TextReader
from engine.backends.thinking import Thinking
from engine.backends.toolset import ToolSet
from engine.backends.turns import turns_of
from engine.backends.vocabulary import Span, Vocabulary
from engine.errors import RequestError
from engine.items import Answer, Item
from engine.toolspec import Tool

log = logging.getLogger(__name__)

Shape = tuple[tuple[tuple[str, str], ...], ...]  # turns of texts only, as a key
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

    header_ids: what begins a turn of the model behind a user's. close_ids: what ends one that others follow. end_ids:
    what it may end with, a stop token each. stop_ids: what it stops at.
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
        response_template: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises TemplateError when the template's conversations cannot be extended at their end."""
        self.vocabulary = vocabulary
        self.context_window = context_window
        self.model_id = model_id
        self._response_template = response_template
        self._template = template
        self.manners = manners_of(template, family)
        shows = {"shows_tools": self.manners.shows_tools, "shows_calls": self.manners.shows_calls}
        self.family = msgspec.structs.replace(family, **shows)
        self.headers = Headers(template, self.manners, self._markup_ids)
        self.header_ids = self.headers.after("user").ids
        self.close_ids = self._markup_ids(self.manners.closing)
        ends = [vocabulary.controls[end] for end in self.manners.ends if end in vocabulary.controls]
        self.end_ids = frozenset([*ends, *self.close_ids[:1]])
        self.stop_ids = stop_ids.union(ends)
        self.call_stop_id = ends[0] if ends else None  # what a turn that calls ends with
        text_stop = vocabulary.added.get(family.text_stop, ends[-1] if ends else None)
        self.stops_in_order = tuple(sorted(self.stop_ids, key=lambda stop: stop != text_stop))  # a text's end first
        self._tool_contexts: OrderedDict[bytes, ToolContext] = OrderedDict()
        self._tells_early = begins_afresh(vocabulary.encode)
        self._frame_again = lru_cache(_MAX_FRAMES)(self._frame)
        if self.manners.rewrites:
            log.info("%s: its chat template writes earlier turns anew as a run goes on; here they stay", model_id)

    def _markup_ids(self, text: str) -> list[int]:
        return self.vocabulary.encode_spans([Span(text, True)])

    @classmethod
    def load(cls, folder: Path, *, context_window: int | None = None, family: str = "") -> "PromptFormat":
        """The format of the model in `folder` (`tokenizer.json`, `config.json`, chat template).

        context_window: instead of the model's own, for a backend that computes nothing. family: its name, instead of
        the one that the template tells. Raises FileNotFoundError for a missing file, TemplateError for a template that
        cannot be used, RequestError for an unknown family.
        """
        facts = ModelFacts.load(folder)
        chosen = family_named(family) if family else family_of(facts.template)
        if (
            not family
            and chosen is HERMES_IN_TEXT
            and "tool_calls" in (facts.response_template or {}).get("fields", {})
        ):
            chosen = BY_TRANSFORMERS
        vocabulary = Vocabulary.load(folder, chosen.markup)
        return cls(
            Template(facts.template, facts.special_tokens),
            vocabulary,
            chosen,
            context_window=context_window or facts.context_window,
            stop_ids=facts.stop_ids(vocabulary),
            model_id=facts.model_id,
            response_template=facts.response_template,
        )

    # --- rendering and encoding

    def start(
        self, instructions: str | None, context: ToolContext, items: Sequence[Item], thinking: Thinking = ""
    ) -> Rendered:
        """A new context: system turn, tools, items. Raises RequestError."""
        contents = Contents()
        turns = [*self._opening(instructions, contents, context), *self._turns(items, contents)]
        shown = context.tools.documents() if self.family.shows_tools else ()
        tools = [contents.put_json(value, text) for value, text in shown]
        try:
            text = self._template.start(turns, tools, self.headers.variables(thinking))
        except TemplateError as error:
            text = self._start_bit_by_bit(turns, tools, thinking, error)
        return Rendered(contents.spans(text), _last_role(turns))

    def _start_bit_by_bit(
        self, turns: Sequence[Turn], tools: Sequence[Any], thinking: Thinking, error: TemplateError
    ) -> str:
        """The first user's turn with what is before it, then what the others add: for templates that want an order.

        Raises RequestError.
        """
        size = next((index + 1 for index, turn in enumerate(turns) if turn["role"] == "user"), len(turns))
        first = list(turns[:size])
        for begin in (first, _merged(first)):
            try:
                text = self._template.start(begin, tools, self.headers.variables(thinking))
            except TemplateError:
                continue
            roles = ["call" if "tool_calls" in turn else turn["role"] for turn in turns[size - 1 :]]
            return text + "".join(
                self._extend(role, [turn], thinking) for role, turn in zip(roles, turns[size:], strict=False)
            )
        raise RequestError(str(error)) from error

    def extend(
        self, last_role: str | None, items: Sequence[Item], labels: Sequence[str] = (), thinking: Thinking = ""
    ) -> Rendered:
        """What items add after a turn of `last_role`. labels: of the calls that they answer. Raises RequestError."""
        contents = Contents()
        turns = self._turns(items, contents, labels)
        if not turns:
            return Rendered([], None)
        shape = _shape(turns) if self._template.is_timeless else None
        if shape is None:
            text = self._extend(last_role, turns, thinking)
        else:
            text = self._frame_again(last_role, shape, thinking)
        return Rendered(contents.spans(text), _last_role(turns))

    def foresee(
        self, last_role: str | None, items: Sequence[Answer], labels: Sequence[str] = (), thinking: Thinking = ""
    ) -> list[Span]:
        """What outputs add after a turn of `last_role`, up to the end of the last one's text so far."""
        rendered = self.extend(last_role, [*items[:-1], _marked(items[-1])], labels, thinking)
        spans = rendered.spans
        end = next((index for index in range(len(spans) - 1, -1, -1) if MARK in spans[index].text), 0)
        return [*spans[:end], Span(spans[end].text.rpartition(MARK)[0], False)] if spans else []

    def _frame(self, last_role: str | None, shape: Shape, thinking: Thinking) -> str:
        """What turns of this shape add. Their contents are stand-ins, so it is the same for all that come."""
        return self._extend(last_role, [dict(turn) for turn in shape], thinking)

    def _extend(self, last_role: str | None, turns: Sequence[Turn], thinking: Thinking) -> str:
        try:
            return self._extend_at_once(last_role, turns, self.headers.variables(thinking))
        except TemplateError as error:
            if len(turns) == 1:
                raise RequestError(str(error)) from error
        # Mistral's want a turn of the model between two of the user.
        roles = [last_role, *(turn["role"] for turn in turns)]
        return "".join(self._extend(role, [turn], thinking) for role, turn in zip(roles, turns, strict=False))

    def _extend_at_once(self, last_role: str | None, turns: Sequence[Turn], variables: Variables) -> str:
        # A template may join neighbouring turns of one role. What is committed cannot be joined to any more: then
        # the new turns are rendered as if they followed a turn of the model.
        fallback = "call" if turns[0]["role"] == "tool" else "assistant"
        name = turns[0].get("name", "look")
        if last_role and not (last_role == "assistant" and fallback == "call"):
            with suppress(TemplateError):
                return self._template.extend(self.manners.before(last_role, name), turns, variables)
        return self._template.extend(self.manners.before(fallback, name), turns, variables)

    def _turns(self, items: Sequence[Item], contents: Contents, labels: Sequence[str] = ()) -> list[Turn]:
        return turns_of(items, self.family, contents, self.manners, labels)

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

    def new_parser(
        self, context: ToolContext, step: StepSpec, last_role: str | None = None, thinking: Thinking = ""
    ) -> TextReader:
        """A parser of the step's ids, behind a turn of this role; without callable tools, call syntax is text."""
        may_call = not step.is_summary and bool(context.tools.callable_under(step.tool_choice))
        tools = context.tools if may_call else ToolSet({})
        if self.family.is_harmony:
            return HarmonyParser(self.vocabulary, self.family, tools)
        if not self.family.knows_calls and self._response_template:
            # Here, because it takes a second, and hardly any model needs it.
            from engine.backends.transformers_parser import TransformersParser

            header = self.headers.after(last_role, thinking).text
            return TransformersParser(self.vocabulary, self._response_template, tools, header, self.stop_ids)
        return StreamParser(
            self.vocabulary, self.family, tools, in_reasoning=self.begins_in_thought(last_role, thinking)
        )

    def begins_in_thought(self, last_role: str | None, thinking: Thinking = "") -> bool:
        """Whether a turn of the model behind one of this role begins within its reasoning."""
        header = self.headers.after(last_role, thinking).text
        return self.family.reasoning is not None and header.rstrip().endswith(self.family.reasoning[0])


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    """The same with the system prompt as a part of the user's turn, for templates that know no system."""
    system = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    first, *others = [turn for turn in turns if turn["role"] != "system"] or [{"role": "user", "content": ""}]
    return [{**first, "content": f"{system}\n\n{first['content']}"}, *others]


def _marked(item: Answer) -> Answer:
    """The output with a mark at the end of its text, where it is one."""
    output = getattr(item, "output", None)
    return msgspec.structs.replace(item, output=output + MARK) if isinstance(output, str) else item


def _shape(turns: Sequence[Turn]) -> Shape | None:
    """The turns as a key; None when they are many, or hold more than texts."""
    if len(turns) > _MAX_FRAMED or any("tool_calls" in turn for turn in turns):
        return None
    return tuple(tuple(turn.items()) for turn in turns)


def _last_role(turns: Sequence[Turn]) -> str | None:
    return turns[-1]["role"] if turns else None
