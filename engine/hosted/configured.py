"""The hosts of the tools that the settings name, opened for the server's life."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module

import trio

from engine.hosted.addresses import address_rules
from engine.hosted.base import Host
from engine.hosted.code_interpreter import CodeInterpreterHost
from engine.hosted.file_search import FileSearchHost
from engine.hosted.functions import FunctionHost, load_modules
from engine.hosted.kinds import WEB_SEARCH_TYPES
from engine.hosted.mcp_host import McpHost
from engine.hosted.web import open_web
from engine.hosted.web_search import WebSearchHost
from engine.settings import Settings


@asynccontextmanager
async def open_hosts(settings: Settings) -> AsyncIterator[Mapping[str, Host]]:
    """By wire type; exactly the types that `kinds.hosted_types` names.

    Raises ToolFileError, SandboxMissing, ValueError for a package that is missing.
    """
    hosts: dict[str, Host] = {}
    async with AsyncExitStack() as stack:
        if settings.tools or settings.mcp_hosts:
            functions = await _load_functions(settings) if settings.tools else None
            remote = _remote_mcp(settings) if settings.mcp_hosts else None
            hosts["mcp"] = McpHost(functions, remote)
        if settings.code_interpreter:
            hosts["code_interpreter"] = await stack.enter_async_context(CodeInterpreterHost.start(settings))
        if settings.file_search:
            hosts["file_search"] = FileSearchHost(settings.data_dir, settings.file_search_timeout_s)
        if settings.web_search_url:
            hosts |= dict.fromkeys(WEB_SEARCH_TYPES, WebSearchHost(open_web(settings)))
        yield hosts


async def _load_functions(settings: Settings) -> Host:
    modules = await trio.to_thread.run_sync(load_modules, settings.tools)
    return FunctionHost(modules, settings.max_hosted_at_once)


def _remote_mcp(settings: Settings) -> Host:
    """The host of remote MCP servers. Raises ValueError where the package for that is missing."""
    try:
        # By its name, since the package is an extra, and takes most of a second to import.
        module = import_module("engine.hosted.remote_mcp")
    except ModuleNotFoundError as error:
        raise ValueError(f"mcp_hosts needs longloop[mcp] to be installed ({error.name} is missing).") from error
    hosts = [] if "*" in settings.mcp_hosts else settings.mcp_hosts
    limits = module.RemoteLimits(
        timeout_s=settings.mcp_list_timeout_s,
        max_bytes=settings.max_mcp_bytes,
        max_tools=settings.max_tools,
        max_schema_bytes=settings.max_schema_bytes,
    )
    remote: Host = module.RemoteMcp(address_rules(hosts, settings.mcp_networks), limits)
    return remote
