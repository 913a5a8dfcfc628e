"""Runs the tools that the model calls, and sees to it that every call gets exactly one output.

Whatever goes wrong with a call (unknown tool, wrong arguments, an exception, its deadline) becomes the text of its
output: the model can react to it, the run goes on.
"""

import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import trio

from engine.client_outbox import AnswerType, Outbox
from engine.client_wire import Event
from engine.content import Content, text_of
from engine.items import McpApprovalResponse
from engine.toolcall import ClientTool, InvalidArguments

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolCall:
    """A call of the model's; `key` names it in its answer, `arguments` is what the model wrote."""

    key: str
    name: str
    arguments: str
    item: Event


Approve = Callable[[ToolCall], Awaitable[bool]]


@dataclass(frozen=True)
class ToolOutcome:
    """How a call ended; `output` is what the model gets, `is_error` says that it describes a failure."""

    call: ToolCall
    output: str
    is_error: bool
    duration_s: float


class _Failure(Exception):
    """A call without a proper output; the message is for the model."""


def _ignore(_: object) -> None:
    """The observer that does nothing."""


class ToolRunner:
    """Answers calls into an outbox. `on_ready` is called when there is something to send.

    Raises ValueError when two tools have the same name.
    """

    def __init__(
        self,
        tools: Iterable[ClientTool],
        outbox: Outbox,
        *,
        deadline_s: float | None = None,
        on_ready: Callable[[], None],
        on_tool_call: Callable[[ToolCall], None] | None = None,
        on_tool_output: Callable[[ToolOutcome], None] | None = None,
        approve: Approve | None = None,
    ) -> None:
        """approve: decides on calls that the server would run, if it may; without it none is approved."""
        self._tools: dict[str, ClientTool] = {}
        for tool in tools:
            if self._tools.setdefault(tool.name, tool) is not tool:
                raise ValueError(f"two tools are named {tool.name}")
        self._outbox = outbox
        self._deadline_s = deadline_s
        self._on_ready = on_ready
        self._on_tool_call = on_tool_call or _ignore
        self._on_tool_output = on_tool_output or _ignore
        self._approve = approve
        self._scopes: dict[str, trio.CancelScope] = {}

    async def answer(self, item: Event) -> None:
        """Run the call in `item` and put its output into the outbox, unless it is dropped meanwhile."""
        call = _tool_call(item)
        if item["type"] == "mcp_approval_request":
            call = replace(call, key=item["id"])
            with self._scopes.setdefault(call.key, trio.CancelScope()):
                await self._decide(call)
            del self._scopes[call.key]
            return
        answer_type: AnswerType = (
            "custom_tool_call_output" if item["type"] == "custom_tool_call" else "function_call_output"
        )
        self._on_tool_call(call)
        with self._scopes.setdefault(call.key, trio.CancelScope()):
            await self._answer(call, answer_type)
        del self._scopes[call.key]

    def drop(self, keys: Iterable[str]) -> None:
        """These calls were never made: stop what runs for them."""
        for key in keys:
            self._scopes.setdefault(key, trio.CancelScope()).cancel()

    async def _answer(self, call: ToolCall, answer_type: AnswerType) -> None:
        start = trio.current_time()
        output, is_error = await self._outcome(call, answer_type)
        await trio.lowlevel.checkpoint_if_cancelled()
        if is_error:
            self._outbox.fail(call.key, answer_type, text_of(output))
        else:
            self._outbox.finish(call.key, answer_type, output)
        self._on_ready()
        self._on_tool_output(ToolOutcome(call, text_of(output), is_error, trio.current_time() - start))

    async def _outcome(self, call: ToolCall, answer_type: AnswerType) -> tuple[Content, bool]:
        try:
            return await self._run(call, partial(self._piece, call.key, answer_type)), False
        except _Failure as failure:
            return str(failure), True

    async def _run(self, call: ToolCall, on_piece: Callable[[str], None]) -> Content:
        tool = self._tools.get(call.name)
        if tool is None:
            raise _Failure(f"There is no tool named {call.name!r}. Tools: {', '.join(self._tools) or 'none'}.")
        deadline_s = tool.deadline_s or self._deadline_s or math.inf
        try:
            with trio.move_on_after(deadline_s):
                return await tool.call(call.arguments, on_piece)
        except InvalidArguments as error:
            raise _Failure(str(error)) from error
        except Exception as error:
            said = f"{call.name} failed: {type(error).__name__}: {error}"
            log.error("tool %s\n%s", said, _user_frames(error))
            raise _Failure(said) from error
        raise _Failure(f"{call.name} did not finish within {deadline_s:g} s.")

    def _piece(self, key: str, answer_type: AnswerType, text: str) -> None:
        if self._scopes[key].cancel_called:  # a thread does not notice
            return
        self._outbox.add_piece(key, answer_type, text)
        self._on_ready()

    async def _decide(self, call: ToolCall) -> None:
        """Approve a call of the server's or not: no answer would leave the run hanging, so without anybody it is no."""
        if self._approve is None:
            log.warning("%s needs approval and is not made; `approve` decides on such calls", call.name)
            approve, reason = False, "the client approves no MCP calls"
        else:
            approve, reason = await self._approve(call), None
        self._outbox.add(
            McpApprovalResponse(
                approval_request_id=call.key, approve=approve, reason=msgspec.UNSET if reason is None else reason
            )
        )
        self._on_ready()


def _user_frames(error: Exception) -> str:
    """The traceback from the tool's own code on: how we and trio got there helps nobody."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    start = next((at for at, name in enumerate(names) if name not in ("engine", "trio", "outcome")), len(names))
    return "".join(traceback.StackSummary.extract(iter(frames[start:])).format()).rstrip()


def _tool_call(item: Event) -> ToolCall:
    written = item.get("arguments", item.get("input", ""))
    return ToolCall(
        key=item.get("call_id") or item.get("id") or "",
        name=item.get("name") or item["type"].removesuffix("_call"),
        arguments=written if isinstance(written, str) else "",
        item=item,
    )
