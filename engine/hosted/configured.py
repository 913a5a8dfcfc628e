"""The hosts of the tools that the settings name, opened for the server's life."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from engine.hosted.base import Host
from engine.hosted.code_interpreter import CodeInterpreterHost
from engine.hosted.functions import FunctionHost, load_modules
from engine.settings import Settings


@asynccontextmanager
async def open_hosts(settings: Settings) -> AsyncIterator[Mapping[str, Host]]:
    """By wire type; exactly the types that `kinds.hosted_types` names. Raises ToolFileError, SandboxMissing."""
    hosts: dict[str, Host] = {}
    async with AsyncExitStack() as stack:
        if settings.tools:
            modules = await trio.to_thread.run_sync(load_modules, settings.tools)
            hosts["mcp"] = FunctionHost(modules, settings.max_hosted_at_once)
        if settings.code_interpreter:
            hosts["code_interpreter"] = await stack.enter_async_context(CodeInterpreterHost.start(settings))
        yield hosts
