"""Codex, unmodified, in runs with hosted items: which of them it goes on from as ever, and which make it start over.

It goes on only from items that it knows. Of what it does not know it keeps nothing, so a history that it sends lacks
such calls and what came of them; the server puts them back (left_out.py). 0.98 does not compare what it has with what
it was sent, and appends whatever comes.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from engine.hosted.fake import FakeHost, Played
from tests.peers.codex import MODEL, NEW_MODEL, Codex, chaining_config, config
from tests.peers.npm import codex_binary
from tests.peers.played import open_recorded
from tests.peers.recorder import Recorder, open_recorder
from tests.served import open_served
from tests.test_service_agent import started

pytestmark = pytest.mark.peer

_DEADLINE_S: Final = 60  # a turn takes two seconds; the rest is for a machine that others use too
APPENDING: Final = ("0.98.0", "0.100.0", "0.107.0")  # the other one chains
UNKNOWN: Final = ("mcp_call", "file_search_call", "code_interpreter_call")

BESIDE: Final = """
model: MODEL
steps:
  - calls:
      - {name: exec_command, arguments: {cmd: "echo run | tee -a runs.txt"}}
      - {name: find, arguments: {query: tea}}
  - call: {name: exec_command, arguments: {cmd: "echo run | tee -a runs.txt"}}
  - text: "I saw: {outputs}"
"""
BOTH: Final = """
model: MODEL
steps:
  - calls:
      - {name: web_search, arguments: {query: tides}}
      - {name: exec_command, arguments: {cmd: echo one}}
  - text: "I saw: {outputs}."
    calls:
      - {name: stock, arguments: {part: bolt}}
      - {name: exec_command, arguments: {cmd: echo two}}
  - text: "At last: {outputs}."
"""
STOCK: Final = '''
def stock(part: str) -> str:
    """How many there are."""
    return f"seven of {part}"
'''


def appends(version: str) -> bool:
    """Whether this release appends."""
    return version in APPENDING


def codex(version: str, url: str, folder: Path) -> Codex:
    """This release, set up for that."""
    text = config(url) if appends(version) else chaining_config(url)
    return Codex(codex_binary(version), folder / "codex", text)


def played(scenario: str, version: str) -> str:
    """A scenario for a model that this release knows."""
    return scenario.replace("MODEL", MODEL if appends(version) else NEW_MODEL)


@asynccontextmanager
async def open_offering(host: FakeHost, scenario: str, version: str) -> AsyncIterator[Recorder]:
    """A server that offers the host's tools to whoever comes, as `offer_tools` does, with a recorder before it."""
    settings: dict[str, Any] = {"tools": ["fake"], "offer_tools": True}
    settings["lifecycle"] = "append" if appends(version) else "chain"
    with trio.fail_after(_DEADLINE_S):
        async with (
            open_served(played(scenario, version), hosts={"mcp": host}, **settings) as server,
            trio.open_nursery() as nursery,
        ):
            listeners = await nursery.start(trio.serve_tcp, server.app.serve_stream, 0)
            async with open_recorder(listeners[0].socket.getsockname()[1]) as recorder:
                yield recorder
            nursery.cancel_scope.cancel()


def requests(recorder: Recorder) -> list[str]:
    """What Codex sent: `create` (everything), `next` (a create that names the one before), `append`."""
    sent = [frame for frame in recorder.sent() if frame.body.get("generate") is not False]  # it warms up with that
    is_next = [frame.body.get("previous_response_id") is not None for frame in sent]
    return ["next" if named else frame.type.partition(".")[2] for frame, named in zip(sent, is_next, strict=True)]


def repeated(recorder: Recorder, number: int) -> list[str]:
    """The types of the items in one of its requests, but for what the user and Codex itself say."""
    types = [item["type"] for item in recorder.sent()[number].body["input"]]
    return [type_ for type_ in types if type_ != "message"]


@pytest.mark.parametrize(
    ("version", "kinds", "expected"),
    [
        ("0.107.0", ("web_search_call",), ["create", "append", "append"]),
        ("0.107.0", UNKNOWN, ["create", "create", "append"]),
        ("0.100.0", ("web_search_call",), ["create", "append", "append"]),
        ("0.100.0", ("mcp_call",), ["create", "create", "append"]),
        ("0.171.0", ("web_search_call",), ["next", "next", "next"]),
        ("0.171.0", UNKNOWN, ["next", "create", "next"]),
        ("0.98.0", ("web_search_call", "mcp_call"), ["create", "append", "append"]),
    ],
)
async def test_codex_goes_on_from_hosted_items_that_it_knows(
    version: str, kinds: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:  # P120, P122
    for kind in kinds:
        host = FakeHost({"find": Played(output="a teapot")}, hosted=kind)
        folder = tmp_path / kind
        async with open_offering(host, BESIDE, version) as recorder:
            result = await codex(version, recorder.url, folder).exec("go")
        assert (kind, requests(recorder)) == (kind, expected)
        assert result.final_text.startswith("I saw: ") and "run" in result.final_text
        assert (folder / "codex" / "work" / "runs.txt").read_text() == "run\nrun\n", "each command ran once"
        assert len(host.calls) == 1, "the hosted tool ran once"
        if expected[1] == "create":
            assert repeated(recorder, -2) == ["function_call", "function_call_output"]  # the hosted one is gone
        assert {frame.socket for frame in recorder.sent()} == {0}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.107.0", ["create", "append", "create"]), ("0.171.0", ["next", "next", "create"])],
)
async def test_a_search_and_a_function_of_the_servers_beside_its_own_commands(
    version: str, expected: list[str], tmp_path: Path
) -> None:  # P120, P122, P131
    """As users have it: `longloop serve --tools … --set offer_tools=true --set web_search_url=…`."""
    (tmp_path / "company.py").write_text(STOCK)
    with started([sys.executable, "demos/search_provider.py"]) as (search_url, _):
        hosting = {"tools": [str(tmp_path / "company.py")], "offer_tools": True, "web_search_url": search_url}
        hosting["lifecycle"] = "append" if appends(version) else "chain"
        async with open_recorded(played(BOTH, version), tmp_path, **hosting) as recorder:
            result = await codex(version, recorder.url, tmp_path).exec("go")
    assert requests(recorder) == expected
    items = [frame.body["item"] for frame in recorder.received("response.output_item.done")]
    (call,) = [item for item in items if item["type"] == "mcp_call"]
    assert call["output"] == "seven of bolt"
    first, last = (message["text"] for message in result.items("agent_message"))
    assert "About: tides" in first and "one" in first, "the model was told what both have found"
    assert "two" in last and "seven of bolt" in last, "Codex has not kept it, but the model is told"
    kept = ["web_search_call", *["function_call", "function_call_output"] * 2]
    assert sorted(repeated(recorder, -1)) == sorted(kept)


@pytest.mark.parametrize("version", ["0.107.0", "0.171.0"])
async def test_a_call_that_needs_approval_is_never_made_for_codex(version: str, tmp_path: Path) -> None:  # P127
    host = FakeHost({"find": Played()}, needs_approval=["find"])
    async with open_offering(host, BESIDE, version) as recorder:
        result = await codex(version, recorder.url, tmp_path).exec("go")
    assert result.final_text.startswith("I saw: ")
    assert requests(recorder)[1] == "create"
    assert host.calls == []
