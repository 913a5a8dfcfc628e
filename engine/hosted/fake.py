"""Scripted hosted tools: they take as long, tell as much and fail as they are told."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import trio

from engine.hosted.base import Definition, HostedCall, HostedResult, Listed, Sketch, Tell
from engine.toolspec import Tool


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What a scripted tool does when it is called."""

    output: str = "ok"
    takes_s: float = 0.0
    tells: tuple[Sketch, ...] = ()
    raises: Exception | None = None
    result: HostedResult | None = None


class FakeHost:
    """A host whose tools do what `played` says by their names. `calls` are those that were made, in order."""

    def __init__(
        self,
        played: Mapping[str, Played],
        *,
        hosted: str = "mcp_call",
        listed: Listed | None = None,
        needs_approval: Sequence[str] = (),
    ) -> None:
        """hosted: the type of the calls' items. listed: what each run shows first."""
        self.calls: list[HostedCall] = []
        self.num_cancelled = 0
        self.opened: list[dict[str, Any]] = []
        self._played = played
        self._hosted = hosted
        self._listed = listed
        self._needs_approval = needs_approval

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> "FakeTool":
        """See base.Host."""
        self.opened.append(definition.fields)
        label = definition.fields.get("server_label", "fake")
        tools = [
            Tool(
                "function",
                name,
                parameters={"type": "object", "properties": {}},
                namespace=label,
                hosted=self._hosted,
                needs_approval=name in self._needs_approval,
            )
            for name in self._played
        ]
        return FakeTool(self, tools, None if known else self._listed)

    async def play(self, call: HostedCall, tell: Tell) -> HostedResult:
        """One call, as scripted."""
        self.calls.append(call)
        played = self._played[call.tool.name]
        for sketch in played.tells:
            tell(sketch)
        try:
            await trio.sleep(played.takes_s)
        except trio.Cancelled:
            self.num_cancelled += 1
            raise
        if played.raises is not None:
            raise played.raises
        return played.result or HostedResult(played.output)


class FakeTool:
    """One run's."""

    def __init__(self, host: FakeHost, tools: Sequence[Tool], listed: Listed | None) -> None:
        self.tools = tools
        self.listed = listed
        self._host = host

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """See base.HostedTool."""
        return await self._host.play(call, tell)
