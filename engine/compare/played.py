"""What one run by one design took, noted by the client while it plays."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from engine.compare.work import Work, answer

PHASES: Final = ("queue", "route", "validate", "classify", "render", "tokenize", "prefill", "sampling", "ledger")
COUNTS: Final = ("items_new", "tokens_new", "tokens_reused", "tokens_prefilled")

Item = dict[str, Any]


@dataclass
class Played:
    """Times are milliseconds. `items` are the model's, in order.

    wall_ms: from before connecting to the run's last event, tools included. tool_ms: the part of it in which nothing
    was waited for but tools. ttft_ms: for each turn, from when the client had what it sends (and began to connect,
    where it does) to the first event of an item. phases_ms: the server's own account, summed over the run.
    """

    items: list[Item] = field(default_factory=list)
    wall_ms: float = 0.0
    tool_ms: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    num_trips: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    cpu_ms: float = 0.0


class Course:
    """A run while it is played: the client tells what it does and sees, and asks it for the tools' outputs."""

    def __init__(self, work: Work, *, tools_take_time: bool = True) -> None:
        self.work = work
        self.played = Played()
        self._tools_take_time = tools_take_time
        self._began = time.perf_counter()
        self._asked: float | None = None
        self._last_item_at = 0.0
        self._tools_began = self._tools_through = 0.0

    def connects(self, num_trips: int) -> None:
        """The client has waited for something to go to the server and back, so many times, before it could ask."""
        self.played.num_trips += num_trips

    def asks(self) -> None:
        """The client has all that its next turn needs, and is about to send it."""
        self._asked = time.perf_counter()

    def sees(self, event: Mapping[str, Any]) -> None:
        """An event of the server. Each step of the work begins with a message, which shows that a turn has begun."""
        match event["type"]:
            case "response.output_item.added" if self._asked and event["item"]["type"] == "message":
                self.played.ttft_ms.append((time.perf_counter() - self._asked) * 1000)
                self.played.num_trips += 1
                self._asked = None
                self._settle_tools()
            case "response.output_item.done":
                self.played.items.append(event["item"])
                self._last_item_at = time.perf_counter()
            case "response.completed":
                self.played.wall_ms = (time.perf_counter() - self._began) * 1000
                self._account(event["response"])

    def _settle_tools(self) -> None:
        # Only now is it known that the step before made no further calls.
        waited_from = max(self._tools_began, self._last_item_at)
        self.played.tool_ms += max(self._tools_through - waited_from, 0.0) * 1000
        self._tools_began = self._tools_through = 0.0

    def _account(self, response: Mapping[str, Any]) -> None:
        """Add what a response that has ended says of itself."""
        timing = response["timing"]["run"]
        for phase in PHASES:
            self.played.phases_ms[phase] += timing[f"{phase}_ms"]
        for name in COUNTS:
            self.played.counts[name] += timing[name]

    async def answers(self, made: list[Item]) -> list[Item]:
        """The outputs for the calls of a step that is over, when the slowest of their tools is through."""
        self._tools_began = time.perf_counter()
        found = [answer(self.work, item) for item in made if item["type"] == "function_call"]
        if found:
            await self._take_time(max(seconds for _, seconds in found))
        self._tools_through = time.perf_counter()
        return [output for output, _ in found]

    async def answer(self, call: Item) -> Item:
        """The output for one call of a step that may go on, when its tool is through. Several may be at work."""
        output, seconds = answer(self.work, call)
        await self._take_time(seconds)
        self._tools_through = time.perf_counter()
        return output

    async def _take_time(self, seconds: float) -> None:
        await trio.sleep(seconds if self._tools_take_time else 0)


class RunFailed(Exception):
    """The server ended a run that is to be measured; the message has its words."""


FAILURES: Final = frozenset({"error", "response.failed", "response.incomplete", "response.inject.failed"})


def check(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event. Raises RunFailed for one that ends the run before its time."""
    if event["type"] in FAILURES:
        raise RunFailed(f"the run ended: {event}")
    return event
