"""functions.py: the server's own Python functions as hosted tools."""

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from engine.errors import RequestError
from engine.hosted.base import Definition, HostedCall, HostedResult, HostedTool
from engine.hosted.functions import FunctionHost, HostedFunction, load_modules
from engine.hosted.mcp_host import McpHost
from engine.toolcall import InvalidArguments
from engine.toolfile import ToolFileError
from engine.toolschema import FunctionTool
from tests.served import open_served


async def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first.
    """
    return a + b


def where() -> str:
    """The thread's name."""
    return threading.current_thread().name


async def sleep(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "slept"


async def open_tools(*functions: FunctionTool, **fields: Any) -> HostedTool:
    host = FunctionHost({"box": functions}, 4)
    definition = Definition(0, {"type": "mcp", "server_label": "box"} | fields)
    return await host.open(definition, frozenset(), ())


async def call(tools: HostedTool, name: str, arguments: str = "{}") -> HostedResult:
    (tool,) = [one for one in tools.tools if one.name == name]
    return await tools.call(HostedCall("mcp_1", "hc_1", tool, arguments), lambda sketch: None)


async def test_function_is_offered_with_its_schema() -> None:
    tools = await open_tools(FunctionTool(add))
    (tool,) = tools.tools
    assert (tool.kind, tool.namespace, tool.name, tool.hosted) == ("function", "box", "add", "mcp_call")
    assert tool.description == "Add two numbers."
    assert tool.parameters is not None
    assert tool.parameters["properties"]["a"] == {"description": "the first.", "type": "integer"}
    assert not tool.needs_approval
    assert tools.listed is None


async def test_async_and_sync_functions_run_the_latter_in_threads() -> None:
    tools = await open_tools(FunctionTool(add), FunctionTool(where))
    assert await call(tools, "add", '{"a": 2}') == HostedResult("3")
    assert (await call(tools, "where")).output != threading.current_thread().name


async def test_arguments_that_do_not_fit_are_the_models_to_mend() -> None:
    tools = await open_tools(FunctionTool(add))
    with pytest.raises(InvalidArguments, match="a: Field required"):
        await call(tools, "add")


def leave() -> str:
    """Exit."""
    sys.exit(3)


async def leave_async() -> str:
    """Exit, in the server's own thread."""
    sys.exit(3)


def interrupt() -> str:
    """As Ctrl-C does."""
    raise BaseExceptionGroup("all", [KeyboardInterrupt()])


@pytest.mark.parametrize("function", [leave, leave_async, interrupt])
async def test_function_that_would_end_the_server_ends_its_call(function: Callable[[], str]) -> None:
    tools = await open_tools(FunctionTool(function))
    result = await call(tools, function.__name__)
    assert re.search(r"FunctionGaveUp: .*(SystemExit|KeyboardInterrupt)", result.output)


async def stubborn() -> str:
    """Fail at being cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt


async def test_cancelled_function_stays_cancelled_whatever_else_it_raises(autojump_clock: MockClock) -> None:
    tools = await open_tools(FunctionTool(stubborn))
    with trio.move_on_after(2) as scope:
        await call(tools, "stubborn")
    assert scope.cancelled_caught


async def test_an_exceptions_message_is_for_the_model() -> None:  # P121
    def look(shelf: int) -> str:
        """Look."""
        raise LookupError(f"there is no shelf {shelf}")

    result = await call(await open_tools(FunctionTool(look)), "look", '{"shelf": 3}')
    assert result.error == result.output == "look failed: LookupError: there is no shelf 3"


async def test_own_deadline_is_shorter_than_the_servers(autojump_clock: MockClock) -> None:
    tools = await open_tools(HostedFunction(sleep, deadline_s=2))
    result = await call(tools, "sleep", '{"seconds": 9}')
    assert (trio.current_time(), result.error) == (2, "sleep did not finish within 2 s.")


async def test_calls_beyond_the_functions_limit_wait(autojump_clock: MockClock) -> None:
    tools = await open_tools(HostedFunction(sleep, max_concurrent=1))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call, tools, "sleep", '{"seconds": 1}')
    assert trio.current_time() == 3


async def test_output_is_cut_to_the_functions_limit() -> None:
    tools = await open_tools(HostedFunction(add, max_output_chars=2))
    assert (await call(tools, "add", '{"a": 12345}')).output == "12"


async def test_definition_chooses_tools_and_asks_for_approval() -> None:
    functions = [FunctionTool(add), HostedFunction(where, needs_approval=True)]
    assert [one.needs_approval for one in (await open_tools(*functions)).tools] == [False, True]
    asked = await open_tools(*functions, allowed_tools=["where"], require_approval="never")
    assert [(one.name, one.needs_approval) for one in asked.tools] == [("where", False)]


async def test_unknown_label_is_refused() -> None:
    with pytest.raises(RequestError, match=r"label 'other' here \(labels: box\)") as caught:
        await open_tools(FunctionTool(add), server_label="other")
    assert caught.value.param == "server_label"


async def test_who_has_functions_alone_says_what_would_allow_a_remote_server() -> None:
    definition = Definition(0, {"type": "mcp", "server_label": "shop", "server_url": "https://mcp.example/mcp"})
    with pytest.raises(RequestError, match="its setting mcp_hosts allows them") as caught:
        await McpHost(FunctionHost({}, 1), None).open(definition, frozenset(), ())
    assert caught.value.param == "server_url"


# --- where they come from ----------------------------------------------------------------------------------------

FILE = '''
from engine.hosted.functions import HostedFunction

def _helper(): ...

def roll(sides: int = 6) -> int:
    """Roll a die."""
    return sides
'''


def test_functions_of_files_and_modules_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dice.py").write_text(FILE)
    (tmp_path / "installed_dice.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    modules = load_modules([str(tmp_path / "dice.py"), "installed_dice"])
    assert {label: [tool.name for tool in tools] for label, tools in modules.items()} == {
        "dice": ["roll"],
        "installed_dice": ["roll"],
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "defines no public function"),
        ("1/0", "division by zero"),
        ("from engine.customtool import CustomTool\ndef f(x: str): ...\ntools = [CustomTool(f)]", "takes free text"),
    ],
)
def test_file_without_fitting_functions_is_refused(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(ToolFileError, match=message):
        load_modules([str(tmp_path / "bad.py")])


def test_two_modules_of_one_name_and_one_that_is_missing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text(FILE)
    with pytest.raises(ToolFileError, match="two modules of tools are called dice"):
        load_modules([str(tmp_path / "dice.py"), "some.dice"])
    with pytest.raises(ToolFileError, match="No module named"):
        load_modules(["no.such.module"])


SCENARIO = """
model: test
steps:
  - {call: {name: add, arguments: {a: 1, b: 2}}}
  - text: "{last_output}"
"""


@pytest.mark.parametrize("is_offered", [True, False])
async def test_functions_are_offered_to_all_when_the_server_says_so(is_offered: bool) -> None:
    host = FunctionHost({"box": [FunctionTool(add)]}, 4)
    settings = {"tools": ["box"], "offer_tools": is_offered}
    async with open_served(SCENARIO, hosts={"mcp": host}, **settings) as served, served.connect() as client:
        await client.create(tools=[])
        last = (await client.step())[-1]
    assert (last["type"] == "response.completed") is is_offered
