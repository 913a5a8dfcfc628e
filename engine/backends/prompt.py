"""Items to tokens, append-only: the context of a run grows at its end and is never rendered or encoded again.

A turn of the model is opened only when it is about to be sampled (`open_turn`), so that several extensions in a row
leave no empty turns between them. What follows the model's stop token in the template ("\\n" in ChatML) belongs to the
next extension, as does the stop token itself when the model was cut off before it.

    EMPTY ──commit──▶ GIVEN ──open_turn──▶ OPEN ──sampled──▶ OPEN, or STOPPED with a stop token
    OPEN, STOPPED ──commit──▶ GIVEN          STOPPED ──open_turn──▶ OPEN          EMPTY, GIVEN ──commit──▶ GIVEN
    any ──restart──▶ EMPTY                   EMPTY ──restore──▶ OPEN, or STOPPED
"""

import copy
import enum
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from engine.backends.base import Extension, RunSpec, StepSpec
from engine.backends.constraint import Constraint
from engine.backends.prompt_format import PromptFormat, Rendered, ToolContext
from engine.backends.text_reader import TextReader
from engine.backends.thinking import thinking_of
from engine.errors import RequestError
from engine.items import Answer, Item
from engine.tokens import Span, TokenLog

__all__ = ["Prompt", "PromptFormat"]

_INLINE_CHARS: Final = 65_536  # about 20 ms of encoding; more goes to a thread (the tokenizer lets go of the GIL)


class _Tail(enum.Enum):
    EMPTY = "empty"
    GIVEN = "given"
    OPEN = "open"
    STOPPED = "stopped"


class _After(msgspec.Struct, frozen=True):
    """What an extension's commit changes besides the log."""

    last_role: str | None
    answers_call: bool
    num_answers: int


class _Room(NamedTuple):
    used: int
    window: int

    def refuse_unless(self, num_tokens: int) -> None:
        """Raises RequestError `context_length_exceeded` when so many more tokens leave none to sample."""
        if self.used + num_tokens >= self.window:
            raise RequestError(
                f"This model's context has {self.window} tokens. {self.used} are in use and {num_tokens} more "
                "do not fit; shorten the input.",
                code="context_length_exceeded",
            )


class Prompt:
    """The context of one run. `prepare` may run while others wait; all else is immediate."""

    def __init__(self, form: PromptFormat, spec: RunSpec) -> None:
        """Raises RequestError for tools or a text format that the model cannot be held to."""
        self.tokens = TokenLog()
        self._form = form
        self._instructions = spec.instructions
        self._thinking = thinking_of(spec.reasoning_effort)
        self._tools: ToolContext = form.tool_context(
            spec.tools, parallel=spec.parallel_tool_calls, text_format=spec.text_format
        )
        self._tail = _Tail.EMPTY
        self._last_role: str | None = None
        self._answers_call = False
        self._ahead = form.new_ahead()
        self._header_role: str | None = None  # of the turn that the model's last one followed
        self._parser: TextReader | None = None
        self._num_answered = 0

    # --- items in

    async def prepare(self, items: Sequence[Item]) -> Extension:
        """Render and encode `items` at the present end of the context; changes nothing. Cost follows the items.

        Raises RequestError: `context_length_exceeded`, or with a path such as `[0].content[1]`.
        """
        base = len(self.tokens)
        room = _Room(base + self._form.headers.longest, self._form.context_window)
        begin = time.perf_counter()
        rendered = self._render(items)
        lead = self._lead() if rendered.spans else ()
        rendered_at = time.perf_counter()
        room.refuse_unless(self._form.fewest_tokens(rendered.num_chars))
        if rendered.num_chars > _INLINE_CHARS:
            ids = await trio.to_thread.run_sync(self._form.encode, rendered.spans)
        else:
            ids = self._form.encode(rendered.spans)
        token_ids = self._unless_begun([*lead, *ids])
        room.refuse_unless(len(token_ids))
        return Extension(
            base=base,
            num_items=len(items),
            num_tokens=len(token_ids),
            token_ids=token_ids,
            render_ms=(rendered_at - begin) * 1e3,
            tokenize_ms=(time.perf_counter() - rendered_at) * 1e3,
            payload=_After(rendered.last_role, bool(items) and isinstance(items[-1], Answer), _num_answers(items)),
        )

    def commit(self, extension: Extension) -> None:
        """Append what was prepared. Raises ValueError when the context has moved since; nothing changed then."""
        if extension.base != len(self.tokens):
            raise ValueError(f"prepared at {extension.base} tokens, the context has {len(self.tokens)}")
        if not extension.token_ids:
            return
        self.tokens.give(extension.token_ids)
        self._tail = _Tail.GIVEN
        self._last_role = extension.payload.last_role or self._last_role
        self._answers_call = extension.payload.answers_call
        self._num_answered += extension.payload.num_answers

    async def foresee(self, items: Sequence[Answer]) -> list[int]:
        """Ids with which the context will go on after these outputs, of which the last one may still grow.

        As far as that can be told: none before the first step or when something was given since the last.
        """
        if not items or self._tail in (_Tail.EMPTY, _Tail.GIVEN):
            return []
        spans = self._form.foresee("assistant", items, self._unanswered, self._thinking)
        if sum(len(span.text) for span in spans) > _INLINE_CHARS:
            ids = await trio.to_thread.run_sync(self._ahead.tell, spans)
        else:
            ids = self._ahead.tell(spans)
        return self._unless_begun([*self._lead(), *ids])

    def _render(self, items: Sequence[Item]) -> Rendered:
        if self._tail is _Tail.EMPTY:
            return self._form.start(self._instructions, self._tools, items, self._thinking)
        last_role = self._last_role if self._tail is _Tail.GIVEN else "assistant"
        return self._form.extend(last_role, items, self._unanswered, self._thinking)

    def _unless_begun(self, ids: list[int]) -> list[int]:
        """Without the first id where the model has stopped at just that: what begins the next turn (GLM)."""
        if self._tail is _Tail.OPEN and ids and ids[0] in self._form.stop_ids and ids[0] == self.tokens.context()[-1]:
            return ids[1:]
        return ids

    def _lead(self) -> Sequence[int]:
        """What ends the model's own turn, as far as it has not written it itself."""
        match self._tail:
            case _Tail.OPEN:
                return self._form.close_ids
            case _Tail.STOPPED:
                return self._form.close_ids[1:]
            case _:
                return ()

    # --- the model's turn

    @property
    def num_turn_tokens(self) -> int:
        """How many ids `open_turn` gives after an extension."""
        return len(self._form.headers.after(self._role_before, self._thinking).ids)

    def open_turn(self) -> list[int]:
        """Begin the model's turn: gives its header to the log and returns it; empty when the turn is open already.

        To be called once before each step. Raises ValueError when nothing was ever committed.
        """
        match self._tail:
            case _Tail.EMPTY:
                raise ValueError("a turn needs a committed extension before it")
            case _Tail.OPEN:
                return []
            case _Tail.GIVEN | _Tail.STOPPED:
                self._header_role = self._role_before
                ids = [*self._lead(), *self._form.headers.after(self._header_role, self._thinking).ids]
                self.tokens.give(ids)
                self._tail = _Tail.OPEN
                self._answers_call = False  # what comes next, if nothing is given, follows the model's own words
                return ids

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append what the model drew, its stop token included; logprobs: of each, if they are known."""
        self.tokens.sample(ids, logprobs)
        if ids:
            self._tail = self._tail_after(ids[-1])

    def _tail_after(self, sampled_id: int) -> _Tail:
        return _Tail.STOPPED if sampled_id in self._form.end_ids else _Tail.OPEN

    def constraint(self, step: StepSpec) -> Constraint | None:
        """How the step's tokens are held to a syntax; None: free. Raises RequestError naming `tool_choice`."""
        return self._tools.grammars.constraint(
            step,
            after_output=self._answers_call,
            begins_in_thought=self._form.begins_in_thought(self._role_before, self._thinking),
        )

    def new_parser(self, step: StepSpec) -> TextReader:
        """A parser for the step that is about to be sampled, which is to follow it: its calls are answered by order."""
        self._parser = self._form.new_parser(self._tools, step, self._role_before, self._thinking)
        self._num_answered = 0
        return self._parser

    @property
    def _role_before(self) -> str | None:
        """Of the turn that the model's follows, the one that is open or the next one."""
        if self._tail is _Tail.OPEN:
            return self._header_role
        return self._last_role if self._tail is _Tail.GIVEN else None

    @property
    def _unanswered(self) -> list[str]:
        """Labels of the calls of the last step that have no output yet."""
        return self._parser.labels[self._num_answered :] if self._parser else []

    # --- another context

    def fork(self) -> "Prompt":
        """A prompt with the same context that goes on by itself."""
        twin = copy.copy(self)
        twin.tokens = self.tokens.copy()
        twin._ahead = self._form.new_ahead()
        return twin

    def restart(self) -> None:
        """An empty context in a new segment of the log."""
        self.tokens.start_segment()
        self._tail = _Tail.EMPTY
        self._last_role = None
        self._answers_call = False
        self._parser = None

    def restore(self, spans: Sequence[Span]) -> None:
        """The context that a log ended with. Raises ValueError when this one is not new, or no step ended there."""
        if self.tokens.total:
            raise ValueError("only a new context can be restored")
        if not spans or not (spans[-1].sampled or self._form.headers.are_last(spans[-1].ids)):
            raise ValueError("the past does not end with a step")
        self.tokens.extend(spans)
        last = spans[-1]
        self._tail = self._tail_after(last.ids[-1]) if last.sampled else _Tail.OPEN  # else a step of no tokens
        if last.sampled:
            self.new_parser(StepSpec()).feed(last.ids)  # for the names of its calls


def _num_answers(items: Sequence[Item]) -> int:
    return sum(isinstance(item, Answer) for item in items)
