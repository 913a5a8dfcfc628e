"""The server's own functions as hosted tools: Python, by module, loaded when the server starts.

A client asks for them with `{"type": "mcp", "server_label": MODULE}`, without a URL, and sees their calls as
`mcp_call` items: the one kind of the API for a named tool that runs on the server.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext

import trio

from engine.content import text_of
from engine.errors import RequestError
from engine.hosted.base import Definition, HostedCall, HostedResult, Listed, Tell, failed
from engine.hosted.kinds import label_of
from engine.hosted.mcp_definition import McpDefinition, read_definition
from engine.toolcall import InvalidArguments, ToolFunction, call_function, no_piece
from engine.toolfile import ToolFileError, load_named
from engine.toolschema import FunctionTool
from engine.toolspec import Tool

log = logging.getLogger(__name__)


class HostedFunction(FunctionTool):
    """A function that the server runs for the model. Raises TypeError for a signature that JSON cannot fill.

    deadline_s: the longest a call may take; None leaves it to `hosted_timeout_s`. max_concurrent: calls of it at a
    time, over all responses; more wait. max_output_chars: the rest is cut. needs_approval: the client is asked first.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        deadline_s: float | None = None,
        max_concurrent: int | None = None,
        max_output_chars: int | None = None,
        needs_approval: bool = False,
    ) -> None:
        super().__init__(function, name=name, description=description, deadline_s=deadline_s)
        self.max_output_chars = max_output_chars
        self.needs_approval = needs_approval
        self.limiter = None if max_concurrent is None else trio.CapacityLimiter(max_concurrent)


class FunctionHost:
    """All functions by their modules' labels."""

    def __init__(self, modules: Mapping[str, Sequence[FunctionTool]], max_threads: int) -> None:
        """max_threads: of functions that are not async; a thread that outlives its call's deadline counts, too."""
        self._modules = {
            label: {tool.name: tool if isinstance(tool, HostedFunction) else _hosted(tool) for tool in tools}
            for label, tools in modules.items()
        }
        self._threads = trio.CapacityLimiter(max_threads)

    @property
    def labels(self) -> list[str]:
        """What definitions may name."""
        return list(self._modules)

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> "FunctionsOfRun":
        """See base.Host."""
        asked = read_definition(definition)
        functions = self._modules.get(asked.server_label)
        if functions is None:
            labels = ", ".join(self._modules) or "none"
            raise RequestError(
                f"There are no functions with the label '{asked.server_label}' here (labels: {labels}), "
                "and 'server_url' says of no other server.",
                param="server_label",
            )
        return FunctionsOfRun(asked, functions, self._threads)


class FunctionsOfRun:
    """A module's functions for one run."""

    listed: Listed | None = None

    def __init__(
        self, asked: McpDefinition, functions: Mapping[str, HostedFunction], threads: trio.CapacityLimiter
    ) -> None:
        self.tools = [_tool(one, asked) for name, one in functions.items() if asked.allows(name)]
        self._functions = functions
        self._threads = threads

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """See base.HostedTool."""
        function = self._functions[call.tool.name]
        try:
            async with function.limiter or nullcontext():
                return await self._call(function, call.arguments)
        except InvalidArguments:
            raise
        except BaseException as error:
            raised = _harmless(error)
            if raised is error and not isinstance(error, Exception):
                raise
            if not isinstance(raised, Exception):
                raise raised from error
            # What its author says is for the model; what the server's own tools raise is for the log alone.
            log.warning("%s failed: %s", function.name, type(raised).__name__, exc_info=error)
            return failed(f"{function.name} failed: {type(raised).__name__}: {raised}")

    async def _call(self, function: HostedFunction, arguments: str) -> HostedResult:
        keywords = function.parse(arguments)
        with trio.move_on_after(function.deadline_s or float("inf")):
            content = await call_function(function.function, (), keywords, no_piece, self._threads)
            return HostedResult(text_of(content)[: function.max_output_chars])
        return failed(f"{function.name} did not finish within {function.deadline_s:g} s.")


class FunctionGaveUp(Exception):
    """A function raised what would end the whole server (`sys.exit`): it ends the call."""


def _harmless(error: BaseException) -> BaseException:
    """What a function raised, as what ends no more than its call. Being cancelled stays what it is."""
    if isinstance(error, Exception | trio.Cancelled):
        return error
    cancelled = error.split(trio.Cancelled)[0] if isinstance(error, BaseExceptionGroup) else None
    return cancelled or FunctionGaveUp(repr(error))


def _hosted(tool: FunctionTool) -> HostedFunction:
    return HostedFunction(tool.function, name=tool.name, description=tool.description, deadline_s=tool.deadline_s)


def _tool(function: HostedFunction, asked: McpDefinition) -> Tool:
    return Tool(
        "function",
        function.name,
        function.description,
        function.parameters,
        namespace=asked.server_label,
        hosted="mcp_call",
        needs_approval=asked.needs_approval(function.name, by_default=function.needs_approval),
    )


def load_modules(names: Iterable[str]) -> dict[str, list[FunctionTool]]:
    """The functions of modules or files, by label: the last part of the module's name. Raises ToolFileError."""
    modules: dict[str, list[FunctionTool]] = {}
    for name in names:
        label = label_of(name)
        if label in modules:
            raise ToolFileError(f"two modules of tools are called {label}")
        modules[label] = []
        for tool in load_named(name):
            if not isinstance(tool, FunctionTool):
                raise ToolFileError(f"{name}: {tool.name} takes free text, which only a client's tool can")
            modules[label].append(tool)
    return modules
