"""Remote MCP servers over streamable HTTP, by the `mcp` package.

A run lists a server's tools once, when it starts; one that goes on from a run with the same definitions does not list
them again. Each call connects anew: a paused run holds no connection and needs none to be there when it goes on, and
ending a call is ending its connection. What comes back is bounded, packed bodies are refused, and a connection is made
only where AddressRules permit it.

`headers` and `authorization` are in a client's memory for as long as its run may call, and nowhere else. So no error of
the transport's is shown or logged as it is: it may quote a request.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx2
import mcp_types
import msgspec
import trio
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from engine.encodable import encodable
from engine.errors import RequestError
from engine.hosted.addresses import AddressRules
from engine.hosted.base import Definition, HostedCall, HostedResult, Listed, Sketch, Tell, failed
from engine.hosted.guarded import GuardedTransport, Refused
from engine.hosted.mcp_definition import McpDefinition, read_definition
from engine.hosted_events import McpListToolsCompleted, McpListToolsFailed, McpListToolsInProgress
from engine.toolspec import Tool

log = logging.getLogger(__name__)

_MAX_REASON_CHARS: Final = 1_000  # of what a server says of a fault of its own
_MAX_PAGES: Final = 50  # of a list of tools; a server that pages for ever gets no further


class RemoteLimits(msgspec.Struct, frozen=True, kw_only=True):
    """timeout_s: to list the tools. max_bytes: of one answer. max_tools: of one server. max_schema_bytes: of a tool."""

    timeout_s: float = 30.0
    max_bytes: int = 5 << 20
    max_tools: int = 512
    max_schema_bytes: int = 100_000


class RemoteMcp:
    """The host of MCP tools that have a `server_url`."""

    def __init__(self, rules: AddressRules, limits: RemoteLimits) -> None:
        self._rules = rules
        self._limits = limits
        self._tls = httpx2.create_ssl_context()  # read once: it takes longer than a short call

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> "RemoteTool":
        """See base.Host. A server that cannot be listed has no tools, and says why by its `mcp_list_tools` item."""
        asked = read_definition(definition)
        self._check(asked)
        own = [tool for tool in known if tool.namespace == asked.server_label]
        if own:
            return RemoteTool(self, asked, own, None)
        try:
            with trio.fail_after(self._limits.timeout_s):
                tools = await self._list(asked)
        except Exception as error:
            why = reason_of(error)
            log.warning("MCP server %s: its tools could not be listed: %s", asked.server_label, why)
            return RemoteTool(self, asked, [], _listed(asked, [], why))
        offered = [tool for tool in tools if asked.allows(tool.name, is_read_only=_is_read_only(tool))]
        return RemoteTool(self, asked, [_offered(tool, asked) for tool in offered], _listed(asked, offered))

    def _check(self, asked: McpDefinition) -> None:
        """Raises RequestError for a URL that no connection may be made to, as far as its name says."""
        try:
            url = httpx2.URL(asked.server_url or "")
        except httpx2.InvalidURL as error:
            raise RequestError("'server_url' is not a URL.", param="server_url") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise RequestError("'server_url' is not an http or https URL.", param="server_url")
        if not self._rules.takes_host(url.host):
            raise RequestError(f"MCP servers on '{url.host}' are not allowed here.", param="server_url")
        for name, value in _headers(asked).items():
            if not _is_header(name, value):
                raise RequestError(f"The header '{name}' cannot be sent.", param="headers")

    async def _list(self, asked: McpDefinition) -> list[mcp_types.Tool]:
        tools: dict[str, mcp_types.Tool] = {}  # a name that comes twice counts once
        cursor: str | None = None
        async with self.connect(asked) as client:
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    if len(msgspec.json.encode(tool.input_schema)) <= self._limits.max_schema_bytes:
                        tools.setdefault(tool.name, tool)
                cursor = page.next_cursor
                if cursor is None or len(tools) > self._limits.max_tools:
                    break
        return list(tools.values())[: self._limits.max_tools]

    @asynccontextmanager
    async def connect(self, asked: McpDefinition) -> AsyncIterator[Client]:
        """A connection for one list or call."""
        transport = _Bounded(
            GuardedTransport(
                self._rules, new_inner=lambda: httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False)
            ),
            self._limits.max_bytes,
        )
        headers = {"User-Agent": "longloop", "Accept-Encoding": "identity"} | _headers(asked)
        # How long it may take is for the caller to say.
        async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=None) as http:
            streams = streamable_http_client(asked.server_url or "", http_client=http)
            async with Client(streams, cache=None) as client:
                yield client


class RemoteTool:
    """One server as a run has it."""

    def __init__(self, host: RemoteMcp, asked: McpDefinition, tools: Sequence[Tool], listed: Listed | None) -> None:
        self.tools = tools
        self.listed = listed
        self._host = host
        self._asked = asked

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """See base.HostedTool."""
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return failed("The arguments are no JSON object.")
        try:
            async with self._host.connect(self._asked) as client:
                return _result(await _call(client, call.tool.name, arguments))
        except Exception as error:
            why = reason_of(error)
            log.warning("MCP server %s: %s failed: %s", self._asked.server_label, call.tool.name, why)
            return failed(f"{call.tool.name} failed: {why}")


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
    """The tool's result as it is: checking it against the tool's schema would list all tools again first."""
    request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=name, arguments=arguments))
    try:
        return await client.session.send_request(request, mcp_types.CallToolResult)
    except MCPError as error:
        if error.code != mcp_types.HEADER_MISMATCH:
            raise
        return await client.call_tool(name, arguments)  # which lists the tools for what the headers must say


# --- what comes back ---------------------------------------------------------------------------------------------


def _result(result: mcp_types.CallToolResult) -> HostedResult:
    parts = [_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    text = "\n".join(parts)
    return failed(text or "The tool failed and said nothing.") if result.is_error else HostedResult(text)


def _text(part: Any) -> str:
    match part:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.ResourceLink(uri=uri):
            return str(uri)
        case _:
            return f"[{part.type}]"


def reason_of(error: BaseException) -> str:
    """Why a connection or call failed, without anything that the request had in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case Refused() | _TooLong():
            return str(error)
        case MCPError():
            return f"the server says: {_one_line(error.message)}"
        case httpx2.HTTPStatusError():
            return f"the server answers with status {error.response.status_code}"
        case httpx2.TransportError():
            return "the server cannot be reached, or broke the connection"
        case trio.TooSlowError():
            return "the server took too long"
        case _:
            return f"the server's answer makes no sense ({type(error).__name__})"


def _one_line(message: str) -> str:
    """What a server says of a fault: it may be as long as an answer, and is logged."""
    return encodable(" ".join(message.split())[:_MAX_REASON_CHARS])


def _offered(tool: mcp_types.Tool, asked: McpDefinition) -> Tool:
    return Tool(
        "function",
        tool.name,
        tool.description or "",
        dict(tool.input_schema),
        namespace=asked.server_label,
        hosted="mcp_call",
        needs_approval=asked.needs_approval(tool.name, by_default=True, is_read_only=_is_read_only(tool)),
    )


def _is_read_only(tool: mcp_types.Tool) -> bool:
    return bool(tool.annotations and tool.annotations.read_only_hint)


def _listed(asked: McpDefinition, tools: Sequence[mcp_types.Tool], error: str | None = None) -> Listed:
    begun = {"type": "mcp_list_tools", "server_label": asked.server_label, "tools": list[Any]()}
    ended = begun | {"tools": [_shown(tool) for tool in tools]} | ({"error": error} if error else {})
    outcome: Sketch = McpListToolsFailed if error else McpListToolsCompleted
    return Listed("mcpl", begun, ended, [McpListToolsInProgress, outcome])


def _shown(tool: mcp_types.Tool) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": tool.name, "input_schema": dict(tool.input_schema)}
    if tool.description:
        shown["description"] = tool.description
    if tool.annotations is not None:
        shown["annotations"] = tool.annotations.model_dump(by_alias=True, exclude_none=True)
    return shown


# --- what goes out -----------------------------------------------------------------------------------------------


def _headers(asked: McpDefinition) -> dict[str, str]:
    bearer = {"Authorization": f"Bearer {asked.authorization}"} if asked.authorization else {}
    return (asked.headers or {}) | bearer


def _is_header(name: str, value: str) -> bool:
    is_token = bool(name) and all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name)
    return is_token and all(" " <= char <= "~" or char == "\t" for char in value)


class _TooLong(Exception):
    """An answer that is longer than it may be."""


class _Bounded(httpx2.AsyncBaseTransport):
    """A transport whose answers have a limit. Packed ones are refused: what they grow to is another matter."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise _TooLong("the server packed its answer, which it was asked not to")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """An answer's body. No generator, so that who reads only a part of it leaves nothing to be finished."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._chunks = aiter(inner)
        self._left = max_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self._left -= len(chunk)
        if self._left < 0:
            await self._inner.aclose()
            with suppress(httpx2.HTTPError, StopAsyncIteration):
                await anext(self._chunks)  # which ends at once, and all the generators below with it
            raise _TooLong("the server answered with more than may be read")
        return chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
