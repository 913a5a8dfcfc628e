"""The seam to a hosted tool: a call of the model's in, a result out.

A run's `tools` hold definitions (`{"type": "mcp", …}`, `{"type": "web_search", …}`). For each type that the server
hosts there is one Host, which lives as long as the server; it opens a HostedTool for a run that has such a definition.
That says which functions the model is offered (`tools`, each of a `hosted` kind) and runs their calls. How the calls
look to the client (their items and events) is the business of the kind's shape (shapes.py), which is pure, so that a
run can be recorded and read back. Whatever goes wrong with a call is a result, too; see runner.py for who calls when.

To add a built-in tool: a shape in shapes.py, a Host, and a line each in kinds.py (is it hosted under these settings?)
and configured.py (opens it). hosted/fake.py has scripted ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from engine.hosted_events import AnyHostedEvent
from engine.toolspec import Tool


class HostedCall(msgspec.Struct, frozen=True):
    """A call of the model's that the server is to run.

    id: of its item. call_id: by which the model's context knows it. arguments: what the model wrote, JSON if it keeps
    to the tool's schema.
    """

    id: str
    call_id: str
    tool: Tool
    arguments: str = ""
    approval_request_id: str | None = None


class HostedResult(msgspec.Struct, frozen=True):
    """How a call ended. `output` is what the model is given; `error` says that it failed, and why.

    fields: what the kind's item shows beyond the call itself, by the item's field names (`results`, `outputs`).
    """

    output: str
    error: str | None = None
    fields: dict[str, Any] = {}


def failed(why: str) -> HostedResult:
    """A call without a proper output; the model and the client are told why, in the same words."""
    return HostedResult(why, why)


# An event but for its number and its item's place, such as `partial(McpCallInProgress)`.
Sketch = Callable[..., AnyHostedEvent]
Tell = Callable[[Sketch], None]


class Definition(msgspec.Struct, frozen=True):
    """An entry of a request's `tools` for one of our hosts. `fields` may hold secrets: never to be kept or logged."""

    index: int
    fields: dict[str, Any]

    @property
    def type(self) -> str:
        """Its wire type."""
        return str(self.fields["type"])


class Listed(msgspec.Struct, frozen=True):
    """An item that a tool shows when its run begins (`mcp_list_tools`): its fields without id, and its events."""

    prefix: str
    begun: dict[str, Any]
    ended: dict[str, Any]
    sketches: list[Sketch]


class HostedTool(Protocol):
    """One definition as a run has it."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What the model is offered: functions with `hosted` set. A namespace keeps them apart from others."""

    @property
    def listed(self) -> Listed | None:
        """What the run shows of it first."""

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """Run a call; `tell` logs an event of its item (progress). Calls of one tool may run at the same time.

        May raise anything: that becomes a failed result. Is cancelled when the run ends or time is up.
        """


class Host(Protocol):
    """All tools of one wire `type`. Opened by the server for its whole life."""

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> HostedTool:
        """The tool for one run. include: of the request. Raises RequestError with a path inside the definition.

        known: what this and other definitions offered to the run that this one goes on from; empty if it does not.
        The tool has nothing to close: what it needs for longer than a call is the host's.
        """
