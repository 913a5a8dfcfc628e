"""Agent runs from Python: `open_run` starts one, runs the functions the model calls, and survives lost connections.

```python
async with open_run("http://127.0.0.1:8765", model="demo", input="Weather in Oslo?", tools=[get_weather]) as run:
    async for event in run:                 # optional: result() reads what nobody iterates over
        print(event.type)
    print((await run.result()).text)
```
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import trio

from engine.client_driver import Callbacks, Driver, Entry, Retry
from engine.client_state import Phase, Result, RunState
from engine.client_tools import Approve, ToolCall, ToolOutcome, ToolRunner
from engine.client_wire import ConnectionLost, Connector, Event, RunFailed, WebSocketConnector
from engine.customtool import CustomTool, custom_tool
from engine.toolcall import ToolFunction
from engine.toolschema import FunctionTool, as_tool
from engine.trace import Trace, open_trace

__all__ = [
    "ConnectionLost", "CustomTool", "Event", "FunctionTool", "Result", "Retry", "Run", "RunFailed", "ToolCall",
    "ToolOutcome", "custom_tool", "open_run",
]  # fmt: skip

OfferedTool = ToolFunction | FunctionTool | CustomTool | Mapping[str, Any]


@asynccontextmanager
async def open_run(
    url: str,
    *,
    model: str | None = None,
    input: str | list[Any],
    tools: Iterable[OfferedTool] = (),
    instructions: str | None = None,
    keep_open: bool = False,
    resumable: bool = True,
    stream_id: str | None = None,
    api_key: str | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_tool_call: Callable[[ToolCall], None] | None = None,
    on_tool_output: Callable[[ToolOutcome], None] | None = None,
    on_retry: Callable[[Retry], None] | None = None,
    approve: Approve | None = None,
    trace: str | Path | Trace | None = None,
    tool_deadline_s: float | None = None,
    connect_timeout_s: float = 10,
    max_retries: int = 5,
    connector: Connector | None = None,
    **fields: Any,
) -> AsyncIterator["Run"]:
    """A run on the server at `url`. Leaving the block early cancels the run there.

    model: the server's default when None.
    tools: functions (see engine.toolschema), custom tools (see engine.customtool), or dicts for definitions that the
        server itself runs.
    fields: further fields of `response.create` (`max_output_tokens`, `temperature`, `include`, `tool_choice`, …).
    stream_id: the lane that the run is on; engine.client_lanes puts several on one connection.
    tool_deadline_s: longest time for a call, unless its tool says otherwise; then the model is told so.
    max_retries: connections tried in a row that bring no new event; with `resumable` the run goes on where it was.
        None are when nobody listens at `url` to begin with.
    approve: is asked whether the server may make a call that needs approval (an MCP tool's); without it, it may not.
    Callbacks run in the run's own tasks and must not block; an exception of theirs ends the run and is raised.
    trace: a file for every frame (see engine.trace). connector: replaces the dialling of `url`.

    Raises ValueError for a bad URL or two tools of one name, TypeError for a function that cannot be a tool.
    """
    offered = [tool if isinstance(tool, Mapping) else as_tool(tool) for tool in tools]
    create = {
        "model": model,
        "input": input,
        "instructions": instructions,
        "tools": [dict(tool) if isinstance(tool, Mapping) else tool.definition for tool in offered] or None,
        "keep_open": keep_open,
        "resumable": resumable,
        "stream_id": stream_id,
        **fields,
    }
    state = RunState({name: value for name, value in create.items() if value is not None})
    with ExitStack() as stack:
        sink = stack.enter_context(open_trace(trace)) if isinstance(trace, str | Path) else trace
        wire = connector or WebSocketConnector(url, api_key=api_key, connect_timeout_s=connect_timeout_s, trace=sink)
        driver = Driver(state, wire, Callbacks(on_event, on_retry), max_retries)
        driver.runner = ToolRunner(
            [tool for tool in offered if not isinstance(tool, Mapping)],
            state.outbox,
            deadline_s=tool_deadline_s,
            on_ready=driver.wake,
            on_tool_call=on_tool_call,
            on_tool_output=on_tool_output,
            approve=approve,
        )
        async with _driven(Run(driver), driver) as run:
            yield run


@asynccontextmanager
async def _driven(run: "Run", driver: Driver) -> AsyncIterator["Run"]:
    """Drive the run while the block lasts. An exception of the block comes out as it is, in no group."""
    held: Exception | KeyboardInterrupt | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.drive)
        try:
            yield run
        except (Exception, KeyboardInterrupt) as error:
            held = error
        finally:
            await driver.leave()
    if held is not None:
        raise held
    run.raise_unseen()


class Run:
    """A run in progress: iterate over its events, or await its result. One reader at a time.

    With `keep_open`, iteration stops and `result()` returns at the end of every turn; `send` starts the next one.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turn: Result | Exception | None = None
        self._is_read = False

    @property
    def id(self) -> str | None:
        """The response's id; None until the server has created it."""
        return self._driver.state.response_id

    @property
    def is_ended(self) -> bool:
        """Whether the run is over, one way or another."""
        return self._driver.state.phase is Phase.ENDED

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event of this turn. Raises RunFailed or ConnectionLost when the run broke."""
        if self._turn is None:
            entry = await self._next_entry()
            if isinstance(entry, Event):
                return entry
            self._turn = entry
        if isinstance(self._turn, Exception):
            raise self._turn
        raise StopAsyncIteration

    async def result(self) -> Result:
        """The result of the run or, kept open, of this turn; events that were not iterated over are dropped.

        Raises RunFailed or ConnectionLost. A run that ended `incomplete` is a result: see its status and reason.
        """
        async for _ in self:
            pass
        assert isinstance(self._turn, Result)
        return self._turn

    async def send(self, text: str) -> None:
        """Start the next turn of a run that is kept open, after this one has ended.

        Raises RunFailed when the run is over.
        """
        await self.result()
        if self._driver.state.phase is not Phase.WAITING:
            raise RunFailed("The run has ended; it takes no further message.", code="response_not_found", status=404)
        self._turn = None
        self._driver.state.say(text)
        self._driver.wake()

    def cancel(self) -> None:
        """Ask the server to end the run; its result then is `incomplete`, reason `cancelled`."""
        self._driver.state.cancel()
        self._driver.wake()

    def raise_unseen(self) -> None:
        """Raise the failure that ended the run, if nobody has seen it."""
        final = self._driver.final
        if isinstance(final, Exception) and final is not self._turn:
            raise final

    async def _next_entry(self) -> Entry | Exception:
        if self._is_read:
            raise trio.BusyResourceError("another task reads this run")
        self._is_read = True
        try:
            return await self._driver.next_entry()
        finally:
            self._is_read = False
