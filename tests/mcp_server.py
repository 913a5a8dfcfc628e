"""A real MCP server of the `mcp` package on loopback, in a thread of its own, which notes the headers it gets."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import mcp_types
import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import Field

READ_ONLY = mcp_types.ToolAnnotations(read_only_hint=True)


def _server(calls: list[str], slow_began: threading.Event, meanwhile: Callable[[str], None]) -> MCPServer:
    server = MCPServer("shop")

    @server.tool(annotations=READ_ONLY)
    async def find(query: str) -> str:
        """Find orders."""
        calls.append(f"find {query}")
        return f"order 7 matches {query}"

    @server.tool()
    async def refund(order: int) -> str:
        """Pay an order back."""
        calls.append(f"refund {order}")
        await asyncio.to_thread(meanwhile, "refund")
        return f"order {order} is paid back"

    @server.tool()
    async def weigh(order: int) -> str:
        """Weigh an order."""
        calls.append(f"weigh {order}")
        await asyncio.to_thread(meanwhile, "weigh")
        return f"order {order} weighs 300 g"

    @server.tool()
    async def slow(seconds: float) -> str:
        """Take a while."""
        calls.append("slow")
        slow_began.set()
        await asyncio.sleep(seconds)
        return "slept"

    @server.tool()
    async def broken() -> str:
        """Always fails."""
        raise ValueError("out of paper")

    @server.tool()
    async def long(chars: int) -> str:
        """A long text."""
        return "x" * chars

    @server.tool()
    async def routed(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Wants an argument in a header, too."""
        calls.append(f"routed {region}")
        return region

    return server


class McpPeer:
    """Where it is, the calls it had, and the headers of every request."""

    def __init__(self, url: str, calls: list[str], headers: list[dict[str, str]], slow_began: threading.Event) -> None:
        self.url = url
        self.calls = calls
        self.headers = headers
        self.slow_began = slow_began

    @property
    def num_lists(self) -> int:
        """How often its tools were listed."""
        return self.calls.count("tools/list")


@contextmanager
def open_mcp_server(meanwhile: Callable[[str], None] = lambda name: None) -> Iterator[McpPeer]:
    """The server, until the block is left. meanwhile: is called, in a thread, while `refund` and `weigh` run."""
    calls: list[str] = []
    headers: list[dict[str, str]] = []
    slow_began = threading.Event()
    # Made in its thread: what anyio makes belongs to the event loop around it.
    make = partial(_noting, calls, headers, slow_began, meanwhile)
    config = uvicorn.Config(make, factory=True, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the MCP server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield McpPeer(f"http://127.0.0.1:{port}/mcp", calls, headers, slow_began)
    finally:
        server.should_exit = True
        thread.join(10)


def _noting(
    calls: list[str],
    headers: list[dict[str, str]],
    slow_began: threading.Event,
    meanwhile: Callable[[str], None],
) -> Any:
    """The server's app, which notes headers and lists."""
    inner: Any = _server(calls, slow_began, meanwhile).streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        headers.append({name.decode(): value.decode() for name, value in scope["headers"]})

        async def noting() -> Any:
            message = await receive()
            if b'"tools/list"' in message.get("body", b""):
                calls.append("tools/list")
            return message

        await inner(scope, noting, send)

    return app
