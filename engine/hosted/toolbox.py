"""All hosted tools of a server: opens those of a run, and makes what runs their calls."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import trio

from engine.errors import RequestError
from engine.hosted.base import Definition, Host, HostedTool
from engine.hosted.kinds import definitions_of
from engine.hosted.runner import Runner
from engine.response import Response
from engine.safety.lookout import Lookout
from engine.settings import Settings
from engine.toolspec import Tool


class Toolbox:
    """See the module."""

    def __init__(self, hosts: Mapping[str, Host], settings: Settings, lookout: Lookout | None = None) -> None:
        """hosts: by the wire types of their tools. lookout: looks at what calls give."""
        self._hosts = hosts
        self._settings = settings
        self._lookout = lookout
        self._limiter = trio.CapacityLimiter(settings.max_hosted_at_once)

    def definitions_of(self, raws: list[msgspec.Raw]) -> list[Definition]:
        """The hosted ones among the tools that a response shows."""
        return definitions_of(raws, self._settings)

    async def open(
        self, definitions: Iterable[Definition], include: frozenset[str], known: Sequence[Tool]
    ) -> list[HostedTool]:
        """The tools of these definitions, opened side by side. Raises RequestError with a path from `tools` on.

        known: what they offered to the run that this one goes on from.
        """
        asked = list(definitions)
        opened: dict[int, HostedTool] = {}
        errors: dict[int, RequestError] = {}

        async def open_one(number: int, definition: Definition) -> None:
            try:
                opened[number] = await self._hosts[definition.type].open(definition, include, known)
            except RequestError as error:
                errors[number] = error.at(f"tools[{definition.index}]")

        async with trio.open_nursery() as nursery:
            for number, definition in enumerate(asked):
                nursery.start_soon(open_one, number, definition)
        if errors:
            raise errors[min(errors)]
        tools = [opened[number] for number in range(len(asked))]
        if sum(len(tool.tools) for tool in tools) > self._settings.max_tools:
            raise RequestError(f"More than {self._settings.max_tools} tools.", param="tools", code="too_many_tools")
        return tools

    def runner(self, response: Response, tools: Sequence[HostedTool]) -> Runner:
        """What runs the calls of a run."""
        return Runner(response, tools, self._settings, self._limiter, self._lookout)
