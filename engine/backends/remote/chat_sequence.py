"""One run on a service by its chat completions: the context here, one connection, one turn at a time."""

import copy
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as ListOf
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import trio

from engine.backends.base import Delta, Extension, Past, RunSpec, StepEnd, StepSpec
from engine.backends.remote.chat_context import ChatContext
from engine.backends.remote.chat_deltas import ChatParser
from engine.backends.remote.chat_request import ChatDialect, run_fields, step_fields
from engine.backends.remote.chat_step import ChatStep
from engine.backends.remote.chat_tools import ChatTools
from engine.backends.remote.chat_turn import ChatTurn
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.errors import UpstreamError
from engine.backends.remote.link import Line
from engine.clock import now_ms
from engine.errors import BackendError
from engine.items import Answer, Item
from engine.tokens import TokenLog

log = logging.getLogger(__name__)

_INLINE_CHARS: Final = 262_144  # some ms of encoding and compression; more goes to a thread


class Desk(Protocol):
    """What a sequence asks of its backend."""

    def take_line(self) -> Line:
        """A connection for a run, which may be there already or be made meanwhile."""

    def give_back(self, line: Line) -> None:
        """The run is over."""

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this beside everything else. It ends with the backend at the latest, and raises nothing."""


class ChatSequence:
    """A Sequence (see base) whose tokens only the service sees."""

    num_turn_tokens = 0

    def __init__(self, spec: RunSpec, dialect: ChatDialect, desk: Desk, window: int | None = None) -> None:
        """window: most tokens of a context, None where nobody knows."""
        self.tokens = TokenLog()  # stays empty
        self._spec = spec
        self._dialect = dialect
        self._desk = desk
        self._tools = ChatTools(spec.tools)
        self._context = ChatContext(spec.instructions, self._tools, dialect.reasoning_field, window)
        self._fields = run_fields(spec, dialect)
        self._line: Line | None = None
        self._step: ChatStep | None = None
        self._scope = trio.CancelScope()
        self._num_new = 0  # tokens given since the last step
        self._is_closed = False
        self._changed = trio.Event()

    @property
    def num_context_tokens(self) -> int:
        """An estimate, until the service has counted."""
        return self._context.num_tokens

    @property
    def context(self) -> ChatContext:
        """What it would send."""
        return self._context

    async def prepare(self, items: ListOf[Item]) -> Extension:
        await trio.lowlevel.checkpoint()
        return self._context.prepare(items)

    async def foresee(self, outputs: ListOf[Answer]) -> None:
        """See base. There is nothing to compute early."""
        await trio.lowlevel.checkpoint()

    def commit(self, extension: Extension) -> None:
        self._context.commit(extension)
        self._num_new += extension.num_tokens
        self._line = self._line or self._desk.take_line()  # it will be needed soon

    # --- a step

    def start_step(self, step: StepSpec) -> None:
        """See base. Raises ValueError during another step, and when the sequence is closed."""
        self._expect_rest()
        fields = self._fields | step_fields(self._spec, step, self._tools, self._dialect)
        turn = ChatTurn(ChatParser(self._tools), partial(self._body, fields), self._heard)
        self._step = ChatStep(
            turn,
            max_tokens=step.max_tokens,
            base=self._context.num_tokens,
            given=self._num_new,
            began=now_ms(),
        )
        self._num_new = 0
        if step.max_tokens == 0:
            self._step.ended("max_output_tokens")  # services take 0 for no limit
            return
        self._scope = trio.CancelScope()
        self._line = self._line or self._desk.take_line()
        self._desk.start(partial(self._converse, self._step, self._line, self._scope))

    async def _converse(self, step: ChatStep, line: Line, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await line.converse(step.turn)
                step.answered()
            except UpstreamError as error:
                step.failed(error)
            except Exception:
                log.exception("a step on the model's service failed")
                step.failed(BackendError("The model could not go on with this step."))
        self._notify()

    async def _body(self, fields: dict[str, Any], encoding: Encoding) -> bytes:
        if self._context.num_unwritten > _INLINE_CHARS:
            return await trio.to_thread.run_sync(self._context.body, fields, encoding)
        return self._context.body(fields, encoding)

    def _heard(self) -> None:
        if self._step is not None:
            self._step.heard(now_ms())
        self._notify()

    async def next_deltas(self) -> list[Delta]:
        """See base. Raises ValueError without a step."""
        await trio.lowlevel.checkpoint()
        while True:
            step = self._step
            if step is None:
                raise ValueError("no step is under way")
            if deltas := step.take(now_ms()):
                if isinstance(deltas[-1], StepEnd):
                    self._settle(step)
                return deltas
            await self._changed.wait()

    def cancel_step(self) -> None:
        if self._step is not None:
            self._scope.cancel()
            self._settle(self._step)

    def interrupt(self) -> list[Delta]:
        if self._step is None:
            raise ValueError("no step is under way")
        self._scope.cancel()
        deltas = self._step.interrupt(now_ms())
        self._settle(self._step)
        return deltas

    def _settle(self, step: ChatStep) -> None:
        """Keep in the context what the step has said; it is over."""
        self._step = None
        parser = step.parser
        self._context.said(parser.text, parser.reasoning, step.finished_calls(), step.usage().total_tokens)
        self._notify()

    # --- at rest

    def fork(self, response_id: str) -> "ChatSequence":
        """See base. It gets a connection of its own."""
        self._expect_rest()
        twin = copy.copy(self)
        twin._spec = msgspec.structs.replace(self._spec, response_id=response_id)
        twin._context = self._context.fork()
        twin._line, twin._changed, twin.tokens = None, trio.Event(), TokenLog()
        return twin

    def restart(self) -> None:
        self._expect_rest()
        self._context.restart()
        self._num_new = 0

    def restore(self, past: Past) -> None:
        """See base. It goes on message for message; the service may have forgotten what it had computed."""
        self._expect_rest()
        if self._context.messages:
            raise ValueError("only a new context can be restored")
        if not past.items:
            raise ValueError("the past does not end with a step")
        self._context.restore(past.items, past.num_tokens)

    def close(self) -> None:
        self.cancel_step()
        if not self._is_closed:
            self._is_closed = True
            if self._line is not None:
                self._desk.give_back(self._line)

    def _expect_rest(self) -> None:
        if self._step is not None or self._is_closed:
            raise ValueError("the sequence is closed" if self._is_closed else "a step is under way")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
