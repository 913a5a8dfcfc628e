"""The server against today's Codex, unmodified: creates that go on by previous_response_id, and HTTP.

Facts about Codex that a test relies on stand beside it. At its start it warms the connection up (`generate: false`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from engine.opening import previous_not_found
from engine.server.lanes import Lanes
from tests.peers.codex import NEW_MODEL, Codex, chaining_config
from tests.peers.npm import codex_binary
from tests.peers.played import open_recorded
from tests.peers.recorder import Recorder, open_recorder
from tests.served import open_served
from tests.test_codex import LONG, ROUNDS, SLOW_TOOL, TALK

pytestmark = pytest.mark.peer

VERSION: Final = "0.171.0"
PAIR: Final = ["response.create", "response.completed"]
ONE_ROUND: Final = """
model: MODEL
steps:
  - reasoning: One command will do.
    call: {name: exec_command, arguments: {cmd: "echo run | tee -a runs.txt"}}
  - text: "To {last_user}: {last_output}"
"""


@pytest.fixture(scope="session")
def binary() -> Path:
    """Codex, installed. Raises PeerUnavailable, which says why, when it cannot be had: nothing is skipped."""
    return codex_binary(VERSION)


@asynccontextmanager
async def open_codex(
    binary: Path, folder: Path, scenario: str, *, max_retries: int = 0, websockets: bool = True
) -> AsyncIterator[tuple[Codex, Recorder]]:
    """Codex and a server that plays `scenario`, with a recorder between them."""
    async with open_recorded(scenario.replace("MODEL", NEW_MODEL), folder) as recorder:
        config = chaining_config(recorder.url, max_retries=max_retries, websockets=websockets)
        yield Codex(binary, folder / "codex", config), recorder


def chain(recorder: Recorder) -> list[bool]:
    """Of each create after the first: whether it goes on from the response before it."""
    ids = [frame.body["response"]["id"] for frame in recorder.received("response.completed")]
    given = [frame.body.get("previous_response_id") for frame in recorder.sent()]
    return [wanted == before for before, wanted in zip(ids, given[1:], strict=False)]


def new_items(recorder: Recorder) -> list[list[str]]:
    """What each create brings."""
    return [[item["type"] for item in frame.body["input"]] for frame in recorder.sent()]


async def test_a_turn_is_a_warm_up_and_creates_with_only_what_is_new(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS) as (codex, recorder):
        result = await codex.exec("go")
    assert result.final_text.startswith("All is done") and result.final_text.endswith("2\n")
    assert (codex.workdir / "three.txt").read_text() == "one\ntwo\n"
    assert recorder.outline() == PAIR * 5
    assert recorder.sockets[0].headers["openai-beta"] == "responses_websockets=2026-02-06"
    assert recorder.sent()[0].body["generate"] is False
    assert chain(recorder) == [True] * 4
    assert new_items(recorder)[2:] == [["function_call_output"] * 2, ["function_call_output"], ["function_call_output"]]
    assert {frame.socket for frame in recorder.frames} == {0}
    assert result.usage == {
        "input_tokens": 1000 + 1100 + 1200 + 1300,
        "cached_input_tokens": 1050 + 1120 + 1230,
        "cache_write_input_tokens": 1000 + 50 + 80 + 70,
        "output_tokens": 50 + 20 + 30 + 7,
        "reasoning_output_tokens": 10 + 4,
    }


async def test_the_server_reads_only_what_a_create_brings(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ONE_ROUND) as (codex, recorder):
        await codex.exec("go")
    steps = [frame.body["response"]["timing"]["step"] for frame in recorder.received("response.completed")]
    assert [step["items_new"] for step in steps] == [len(items) for items in new_items(recorder)]
    assert steps[2]["tokens_reused"] > 1000  # Codex's instructions
    assert steps[2]["tokens_new"] < 100


async def test_the_next_turn_goes_on_from_the_last(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, TALK) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        for word in ("apple", "pear", "plum"):
            assert await app.say(thread, word) == f"You said {word}."
    assert recorder.outline() == PAIR * 4
    assert chain(recorder) == [True] * 3
    assert new_items(recorder)[2:] == [["message"], ["message"]]
    assert {frame.socket for frame in recorder.frames} == {0}


async def test_a_connection_lost_while_a_tool_runs_does_not_end_the_turn(binary: Path, tmp_path: Path):
    scenario = SLOW_TOOL.replace("SECONDS", "1")
    async with (
        open_codex(binary, tmp_path, scenario, max_retries=1) as (codex, recorder),
        codex.open_app_server() as app,
    ):
        thread = await app.start_thread()
        turn = await app.start_turn(thread, "go")
        await recorder.wait_until(lambda: len(recorder.received("response.completed")) == 2)
        recorder.sockets[0].cut()
        assert (await app.wait_turn(turn))["status"] == "completed"
        assert app.final_text(turn).startswith("To go: ") and "run" in app.final_text(turn)
    assert recorder.outline() == PAIR * 3
    assert [frame.socket for frame in recorder.sent()] == [0, 0, 1]
    assert chain(recorder) == [True, False]
    assert new_items(recorder)[2][-2:] == ["function_call", "function_call_output"]  # everything again
    assert (codex.workdir / "runs.txt").read_text() == "run\n", "the tool ran again"


async def test_an_interrupt_of_the_model_leaves_the_next_turns_whole(binary: Path, tmp_path: Path):
    """Codex drops the socket, and sends everything anew on another."""
    scenario = LONG.replace("WORDS", "100000")
    async with open_codex(binary, tmp_path, scenario) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        turn = await app.start_turn(thread, "go")
        await recorder.wait_until(lambda: len(recorder.received("response.output_text.delta")) > 20)
        await app.interrupt(thread, turn)
        assert await app.say(thread, "again") == "Here I am."
        assert await app.say(thread, "once again") == "Here I am."
    assert recorder.outline() == [*PAIR, "response.create", *PAIR * 2]
    assert [frame.socket for frame in recorder.sent()] == [0, 0, 1, 1]


async def test_an_interrupt_of_a_tool_leaves_the_next_turn_whole(binary: Path, tmp_path: Path):
    """Codex answers the call with "aborted by user" and goes on by id, on the same socket."""
    scenario = SLOW_TOOL.replace("SECONDS", "30")
    async with open_codex(binary, tmp_path, scenario) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        turn = await app.start_turn(thread, "go")
        await app.wait_notification("item/started", lambda params: params["item"]["type"] == "commandExecution")
        await app.interrupt(thread, turn)
        assert "aborted by user" in await app.say(thread, "again")
    assert recorder.outline() == PAIR * 3
    assert chain(recorder) == [True, True]
    assert {frame.socket for frame in recorder.frames} == {0}


async def test_a_response_that_the_server_has_forgotten_is_made_again(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Codex takes `previous_response_not_found` as a reason to send everything, on a new socket."""
    before = Lanes.before

    def forget_once(self: Lanes, stream_id: str | None, response_id: str) -> Any:
        monkeypatch.setattr(Lanes, "before", before)
        raise previous_not_found(response_id)

    scenario = TALK.replace("MODEL", NEW_MODEL)
    with trio.fail_after(60):
        async with open_served(scenario, lifecycle="chain") as server, trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, server.app.serve_stream, 0)
            async with open_recorder(listeners[0].socket.getsockname()[1]) as recorder:
                codex = Codex(binary, tmp_path / "codex", chaining_config(recorder.url, max_retries=1))
                async with codex.open_app_server() as app:
                    thread = await app.start_thread()
                    assert await app.say(thread, "apple") == "You said apple."
                    monkeypatch.setattr(Lanes, "before", forget_once)
                    assert await app.say(thread, "pear") == "You said pear."
            nursery.cancel_scope.cancel()
    assert recorder.outline() == [*PAIR * 2, "response.create", "error", *PAIR]
    assert recorder.received("error")[0].body["error"]["code"] == "previous_response_not_found"
    assert [frame.socket for frame in recorder.sent()] == [0, 0, 0, 1]
    assert "previous_response_id" not in recorder.sent()[3].body


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def test_without_websockets_every_request_brings_the_whole_history(binary: Path, tmp_path: Path):
    async with (
        open_codex(binary, tmp_path, ONE_ROUND, websockets=False) as (codex, recorder),
        codex.open_app_server() as app,
    ):
        thread = await app.start_thread()
        for word in ("apple", "pear"):
            assert (await app.say(thread, word)).startswith(f"To {word}: ")
    assert recorder.outline() == ["POST /v1/responses", "response.completed"] * 4
    call = ["reasoning", "function_call", "function_call_output"]
    user = ["message", "message"]  # the answer, and what is said next
    assert [items[4:] for items in new_items(recorder)] == [[], call, call + user, call + user + call]
    assert (codex.workdir / "runs.txt").read_text() == "run\nrun\n"
