"""`longloop run`: one agent run from the terminal, against a server or one of its own."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import trio
from rich.console import Console

from engine.client import Run, open_run
from engine.client_state import Result
from engine.client_tools import ToolCall
from engine.client_wire import NoServer, RunFailed
from engine.commands.backend import choose_backend
from engine.commands.serve import Stages, UsageError, read_settings
from engine.customtool import CustomTool
from engine.errors import EngineError
from engine.server.app import open_app
from engine.settings import Settings
from engine.timeline_view import JsonView, TimelineView, choose_view
from engine.toolfile import ToolFileError, load_tools
from engine.toolschema import FunctionTool


@dataclass(frozen=True)
class RunOptions:
    """What the user typed; see `run_command`."""

    prompt: str
    tools: list[FunctionTool | CustomTool | dict[str, Any]]
    url: str | None
    backend: str | None
    model: str | None
    instructions: str | None
    keep_open: bool
    trace: Path | None
    api_key: str | None
    tool_deadline_s: float | None
    max_output_tokens: int | None
    approves: bool


def run_command(
    prompt: str,
    *,
    tool_files: Sequence[Path] = (),
    url: str | None = None,
    backend: str | None = None,
    model: str | None = None,
    instructions: str | None = None,
    keep_open: bool = False,
    trace: Path | None = None,
    api_key: str | None = None,
    as_json: bool = False,
    tool_deadline_s: float | None = None,
    max_output_tokens: int | None = None,
    mcp: Sequence[str] = (),
    approves: bool = False,
) -> int:
    """Run `prompt` and show the run. Returns the exit code: 0 completed, 1 not, 130 interrupted.

    mcp: tools that the server at `url` runs, `LABEL` for its own functions, `LABEL=URL` for an MCP server's. approves:
    their calls, without asking.

    Without `url` a server starts for this run alone, with `backend` (the setting's default when None). With
    `keep_open` further messages are read from stdin until its end. Raises UsageError for what the user must change.
    """
    if not prompt.strip():
        raise UsageError("The prompt is empty.")
    if url is not None and backend is not None:
        raise UsageError("--backend is for the server that starts without --url; the one at --url has its own.")
    if mcp and url is None:
        raise UsageError("--mcp needs --url: the server that starts without it runs no tools.")
    try:
        tools: list[Any] = [tool for path in tool_files for tool in load_tools(path)]
    except ToolFileError as error:
        raise UsageError(f"{error}.") from error
    options = RunOptions(
        prompt=prompt,
        tools=tools + list(map(_mcp_tool, mcp)),
        url=url,
        backend=backend,
        model=model,
        instructions=instructions,
        keep_open=keep_open,
        trace=trace,
        api_key=api_key,
        tool_deadline_s=tool_deadline_s,
        max_output_tokens=max_output_tokens,
        approves=approves,
    )
    return _run_until_interrupted(options, as_json=as_json)


def _mcp_tool(written: str) -> dict[str, Any]:
    label, _, url = written.partition("=")
    return {"type": "mcp", "server_label": label} | ({"server_url": url} if url else {})


async def _approve(approves: bool, view: JsonView | TimelineView, call: ToolCall) -> bool:
    await trio.lowlevel.checkpoint()
    if not approves:
        view.refuse(call)
    return approves


def _run_until_interrupted(options: RunOptions, *, as_json: bool) -> int:
    code = 1
    try:
        code = trio.run(_main, options, as_json)
    except* KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except* NoServer as group:
        print(f"longloop: {_first(group)}. Start `longloop serve`, or leave out --url.", file=sys.stderr)
    except* EngineError as group:
        print(f"longloop: {_first(group)}", file=sys.stderr)
    except* (ValueError, OSError) as group:
        raise UsageError(str(_first(group))) from group
    return code


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _main(options: RunOptions, as_json: bool) -> int:
    if options.url is not None:
        return await _run(options, options.url, as_json)
    async with _open_own_server(_settings(options)) as url:
        return await _run(options, url, as_json)


def _settings(options: RunOptions) -> Settings:
    return read_settings(None, [], {"backend": options.backend, "model": options.model})


@asynccontextmanager
async def _open_own_server(settings: Settings) -> AsyncIterator[str]:
    """The URL of a server on loopback that lives as long as the block."""
    try:
        opening = choose_backend(settings, Stages(Console(stderr=True)).report)
    except EngineError as error:
        raise UsageError(error.message) from error
    async with opening as backend, open_app(backend, settings) as app:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, app.serve_stream, listeners))
            yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            nursery.cancel_scope.cancel()


async def _run(options: RunOptions, url: str, as_json: bool) -> int:
    view = choose_view(as_json=as_json)
    code = 1
    try:
        code = await _show(options, url, view)
    except* RunFailed as group:
        for error in group.exceptions:
            view.fail(cast(RunFailed, _first(error)))
    return code


async def _show(options: RunOptions, url: str, view: JsonView | TimelineView) -> int:
    async with open_run(
        url,
        model=options.model,
        input=options.prompt,
        tools=options.tools,
        instructions=options.instructions,
        keep_open=options.keep_open,
        api_key=options.api_key,
        trace=options.trace,
        tool_deadline_s=options.tool_deadline_s,
        max_output_tokens=options.max_output_tokens,
        on_event=view.event,
        on_tool_call=view.call,
        on_tool_output=view.answer,
        on_retry=view.retry,
        approve=partial(_approve, options.approves, view),
    ) as run:
        result = await _turn(run, view)
        while options.keep_open and result.status == "in_progress" and (text := await _ask()):
            await run.send(text)
            result = await _turn(run, view)
    is_good = result.status == "completed" or (options.keep_open and result.status == "in_progress")
    return 0 if is_good else 1


async def _turn(run: Run, view: JsonView | TimelineView) -> Result:
    region: AbstractContextManager[None] = nullcontext()
    async with trio.open_nursery() as nursery:
        if isinstance(view, TimelineView):
            region = view.open_region()
            nursery.start_soon(view.redraw)
        with region:
            result = await run.result()
        nursery.cancel_scope.cancel()
    view.end(result)
    return result


async def _ask() -> str:
    """The user's next message; empty when there is none."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        return (await trio.to_thread.run_sync(input, prompt, abandon_on_cancel=True)).strip()
    except EOFError:
        return ""
