"""Runs the hosted calls of one run, in a nursery of the run's own, and puts what came of them into its Response.

A call starts when the model has written it, or the client has approved it, while the model still samples, other calls
run, and the client works on its own ones. The loop goes on when all have come to an end. Ending the run cancels them.

Whatever goes wrong (an exception, the deadline, an output that a policy refuses) is the call's result: the model can
react to it, the run goes on.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from engine.clock import now_ms
from engine.encodable import encodable, encodable_value
from engine.errors import EngineError
from engine.hosted.base import HostedCall, HostedResult, HostedTool, Sketch, failed
from engine.items import FunctionCallOutput
from engine.response import Response
from engine.safety.guard import Guard
from engine.safety.lookout import Lookout
from engine.settings import Settings
from engine.toolcall import InvalidArguments

log = logging.getLogger(__name__)


class Runner:
    """See the module."""

    def __init__(
        self,
        response: Response,
        tools: Sequence[HostedTool],
        settings: Settings,
        limiter: trio.CapacityLimiter,
        lookout: Lookout | None = None,
    ) -> None:
        """limiter: of all calls of the server. lookout: looks at what they give."""
        self._response = response
        self._by_tool = {(one.namespace, one.name): tool for tool in tools for one in tool.tools}
        self._settings = settings
        self._limiter = limiter
        self._lookout = lookout
        self._nursery: trio.Nursery | None = None
        self._settled = trio.Event()
        self._notify: Callable[[], None] = _nothing
        self._guard: Guard | None = None
        self.tools = tools

    async def carry(self, body: Callable[[], Awaitable[None]], notify: Callable[[], None], guard: Guard | None) -> None:
        """Do the run's work with calls beside it; when it ends, they do. Raises what `body` raises, as it is.

        notify: is called when the log grew. guard: is told what policies say of outputs.
        """
        self._notify, self._guard = notify, guard
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                await body()
            except Exception as error:  # raised below, where no nursery wraps it into a group
                failure = error
            self._nursery.cancel_scope.cancel("the run is over")
        if failure is not None:
            raise failure

    def start_new(self) -> None:
        """Start the calls that have become whole since."""
        assert self._nursery is not None
        for call in self._response.hosted.take_to_run():
            self._nursery.start_soon(self._run, call, name=call.id)

    def approvals_came(self) -> None:
        """The client has decided on calls. What it approved starts once its answer has been acknowledged."""
        if self._nursery is not None:  # else the run is about to be carried on, and begins with that
            self._nursery.start_soon(self._begin_approved)

    async def wait_settled(self) -> float:
        """Wait until no call runs, or is to run. Returns the milliseconds that took."""
        began = now_ms()
        self.begin_approved()
        while self._response.answers.is_unsettled:
            self._settled = trio.Event()
            await self._settled.wait()
        return now_ms() - began

    def begin_approved(self) -> None:
        """Announce and start what the client has approved."""
        if self._response.is_open:
            self._response.begin_approved()
            self.start_new()
            self._progressed()

    async def _begin_approved(self) -> None:
        self.begin_approved()

    async def _run(self, call: HostedCall) -> None:
        result = _presentable(await self._result(call), self._settings.max_hosted_output_chars)
        result = await self._vetted(call, result)
        if self._response.is_open:  # or it was cut in this very moment, and so was its item
            self._response.hosted.finish(call, result)
            self._progressed()

    def _progressed(self) -> None:
        self._notify()
        self._settled.set()

    async def _result(self, call: HostedCall) -> HostedResult:
        try:
            async with self._limiter:
                with trio.move_on_after(self._settings.hosted_timeout_s):
                    return await self._call(call)
        except InvalidArguments as error:
            return failed(str(error))
        except Exception as error:
            log.warning("hosted tool %s failed: %s", call.tool.name, type(error).__name__, exc_info=True)
            return failed(f"{call.tool.name} failed in the server.")  # paths and addresses stay in the log
        return failed(f"{call.tool.name} did not finish within {self._settings.hosted_timeout_s:g} s.")

    async def _call(self, call: HostedCall) -> HostedResult:
        tool = self._by_tool.get((call.tool.namespace, call.tool.name))
        if tool is None:
            return failed(f"{call.tool.name} is not there any more.")
        return await tool.call(call, lambda sketch: self._tell(call, sketch))

    def _tell(self, call: HostedCall, sketch: Sketch) -> None:
        self._response.hosted.tell(call, sketch)
        self._notify()

    async def _vetted(self, call: HostedCall, result: HostedResult) -> HostedResult:
        """The result as far as policies let it pass: neither the model nor anybody else sees what is refused."""
        if self._lookout is None or self._guard is None:
            return result
        try:
            looked = await self._lookout.look_at([FunctionCallOutput(call_id=call.call_id, output=result.output)])
        except EngineError as error:
            return failed(error.message)
        self._guard.took(looked)
        return result


def _nothing() -> None:
    """Nobody is to be told."""


def _presentable(result: HostedResult, max_chars: int) -> HostedResult:
    """The result as it can be told: not too long, and nothing in it that UTF-8 cannot say."""
    error = None if result.error is None else _cut(result.error, max_chars)
    return HostedResult(_cut(result.output, max_chars), error, encodable_value(result.fields))


def _cut(text: str, max_chars: int) -> str:
    if len(text) > max_chars:
        text = f"{text[:max_chars]}\n[{len(text) - max_chars} more characters were cut]"
    return encodable(text)
