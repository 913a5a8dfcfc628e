"""The host of `type: "mcp"` tools: by URL a remote server, by label alone the server's own functions."""

from collections.abc import Sequence

from engine.errors import RequestError
from engine.hosted.base import Definition, Host, HostedTool
from engine.toolspec import Tool


class McpHost:
    """See the module; None for what this server does not have."""

    def __init__(self, functions: Host | None, remote: Host | None) -> None:
        self._functions = functions
        self._remote = remote

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> HostedTool:
        """See base.Host."""
        is_remote = definition.fields.get("server_url") is not None
        host = self._remote if is_remote else self._functions
        if host is None and is_remote:
            raise RequestError(
                "This server connects to no remote MCP servers; its setting mcp_hosts allows them.", param="server_url"
            )
        if host is None:
            raise RequestError(
                "Missing required parameter: 'server_url'.", param="server_url", code="missing_required_parameter"
            )
        return await host.open(definition, include, known)
