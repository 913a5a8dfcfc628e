"""toolbox.py: the hosted tools of a run, opened together."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from engine.errors import RequestError
from engine.hosted.base import Definition, HostedTool
from engine.hosted.fake import FakeHost, Played
from engine.hosted.toolbox import Toolbox
from engine.settings import Settings
from engine.toolspec import Tool


class SlowHost(FakeHost):
    """A host that takes as long to open, and fails, as the definition says."""

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> Any:
        await trio.sleep(definition.fields.get("takes_s", 0))
        if why := definition.fields.get("fails"):
            raise RequestError(why, param="server_url")
        return await super().open(definition, include, known)


def definition(index: int, label: str, **fields: Any) -> Definition:
    return Definition(index, {"type": "mcp", "server_label": label, **fields})


async def opened(*definitions: Definition, **settings: Any) -> list[HostedTool]:
    toolbox = Toolbox({"mcp": SlowHost({"a": Played(), "b": Played()})}, Settings(**settings))
    return await toolbox.open(definitions, frozenset(), ())


async def test_tools_are_opened_side_by_side_and_come_in_order(autojump_clock: MockClock) -> None:
    tools = await opened(definition(0, "slow", takes_s=3), definition(1, "quick", takes_s=1))
    assert trio.current_time() == 3
    assert [tool.tools[0].namespace for tool in tools] == ["slow", "quick"]


async def test_first_of_the_wrong_definitions_is_told() -> None:
    with pytest.raises(RequestError) as caught:
        await opened(definition(2, "a", fails="one", takes_s=0.01), definition(5, "b", fails="two"))
    assert (caught.value.message, caught.value.param) == ("one", "tools[2].server_url")


async def test_no_more_tools_than_a_run_may_have() -> None:
    with pytest.raises(RequestError) as caught:
        await opened(definition(0, "x"), definition(1, "y"), max_tools=3)
    assert (caught.value.code, caught.value.param) == ("too_many_tools", "tools")
