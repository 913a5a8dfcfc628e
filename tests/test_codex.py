"""The server against the client the prototype was made for: unmodified Codex, which speaks `response.append`.

Codex decides by itself when it appends and when it creates anew, so each test reads what passed between the two
(`recorder.outline()`) and what the user got. Facts about Codex that a test relies on stand beside it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.peers.codex import MODEL, Codex, ExecResult, config
from tests.peers.npm import codex_binary
from tests.peers.played import open_recorded
from tests.peers.recorder import Recorder

pytestmark = pytest.mark.peer

VERSION: Final = "0.107.0"  # the last one that appends
_DEADLINE_S: Final = 30  # a turn takes one second; the rest is for a machine that others use too

ROUNDS: Final = """
model: MODEL
steps:
  - reasoning: Two commands that do not depend on each other.
    calls:
      - {name: exec_command, arguments: {cmd: "echo one | tee -a one.txt"}}
      - {name: exec_command, arguments: {cmd: "echo two | tee -a two.txt"}}
    usage: {input_tokens: 1000, output_tokens: 50, cached_tokens: 0, reasoning_tokens: 10}
  - text: Now the third.
    call: {name: exec_command, arguments: {cmd: "cat one.txt two.txt | tee -a three.txt"}}
    usage: {input_tokens: 1100, output_tokens: 20, cached_tokens: 1050, reasoning_tokens: 0}
  - call: {name: exec_command, arguments: {cmd: "wc -l < three.txt"}}
    usage: {input_tokens: 1200, output_tokens: 30, cached_tokens: 1120, reasoning_tokens: 4}
  - text: "All is done: {last_output}"
    usage: {input_tokens: 1300, output_tokens: 7, cached_tokens: 1230, reasoning_tokens: 0}
"""
TALK: Final = """
model: MODEL
steps:
  - text: "You said {last_user}."
"""
LONG: Final = """
model: MODEL
pace: {tokens_per_second: 100}
steps:
  - cases:
      - when: {last_user_contains: again}
        steps: [{text: Here I am.}]
      - steps: [{text: {words: WORDS}}]
"""
SLOW_TOOL: Final = """
model: MODEL
steps:
  - call: {name: exec_command, arguments: {cmd: "echo run | tee -a runs.txt; sleep SECONDS"}}
  - text: "To {last_user}: {last_output}"
"""


@pytest.fixture(scope="session")
def binary() -> Path:
    """Codex, installed. Raises PeerUnavailable, which says why, when it cannot be had: nothing is skipped."""
    return codex_binary(VERSION)


@asynccontextmanager
async def open_codex(
    binary: Path, folder: Path, scenario: str, *, max_retries: int = 0, timing: bool = False, **settings: Any
) -> AsyncIterator[tuple[Codex, Recorder]]:
    """Codex and a server that plays `scenario`, with a recorder between them."""
    told = {"lifecycle": "append"} | settings
    async with open_recorded(scenario.replace("MODEL", MODEL), folder, **told) as recorder:
        text = config(recorder.url, max_retries=max_retries, timing=timing)
        yield Codex(binary, folder / "codex", text), recorder


def keys(items: list[dict[str, Any]]) -> list[str]:
    """The call ids of outputs, in order."""
    return [item["call_id"] for item in items]


# --- one turn ----------------------------------------------------------------------------------------------------


async def test_a_turn_is_one_create_and_then_only_appends(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS) as (codex, recorder):
        result = await codex.exec("go")
    assert result.final_text.startswith("All is done") and result.final_text.endswith("2\n")
    assert recorder.outline() == [
        "response.create",
        *["response.done", "response.append"] * 3,
        "response.completed",
    ]
    assert [socket.is_upgraded for socket in recorder.sockets] == [True]
    assert recorder.sockets[0].headers["openai-beta"] == "responses_websockets=2026-02-04"
    assert len(recorder.received("response.created")) == 1
    assert (
        len({frame.body["response"]["id"] for frame in recorder.received("response.done", "response.completed")}) == 1
    )


async def test_two_calls_of_one_step_are_answered_by_one_append_in_call_order(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS) as (codex, recorder):
        result = await codex.exec("go")
    pause, append = recorder.received("response.done")[0], recorder.sent("response.append")[0]
    assert len(append.body["input"]) == 2
    assert keys(append.body["input"]) == [call["answer_key"] for call in pause.body["response"]["pending"]]
    assert "one" in append.body["input"][0]["output"] and "two" in append.body["input"][1]["output"]
    assert [item["exit_code"] for item in result.items("command_execution")] == [0, 0, 0, 0]
    assert (codex.workdir / "three.txt").read_text() == "one\ntwo\n"


async def test_codex_counts_the_tokens_that_the_steps_reported(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS) as (codex, _), codex.open_app_server() as app:
        await app.say(await app.start_thread(), "go")
        note = [note["params"] for note in app.notifications if note["method"] == "thread/tokenUsage/updated"][-1]
    total, last = note["tokenUsage"]["total"], note["tokenUsage"]["last"]
    assert total == {
        "inputTokens": 1000 + 1100 + 1200 + 1300,
        "cachedInputTokens": 1050 + 1120 + 1230,
        "outputTokens": 50 + 20 + 30 + 7,
        "reasoningOutputTokens": 10 + 4,
        "totalTokens": 4600 + 107,
    }
    # The last step's usage is what Codex takes for the size of the context when it decides whether to compact.
    assert (last["inputTokens"], last["totalTokens"]) == (1300, 1307)


async def test_exec_reports_the_same_totals(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS) as (codex, _):
        result = await codex.exec("go")
    assert result.usage == {"input_tokens": 4600, "cached_input_tokens": 3400, "output_tokens": 107}


async def test_apply_patch_is_a_custom_tool_and_is_answered_as_one(binary: Path, tmp_path: Path):
    patch = r"*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
    scenario = f"""
    model: MODEL
    steps:
      - call: {{name: apply_patch, input: "{patch}"}}
      - text: "Patched: {{last_output}}"
    """
    async with open_codex(binary, tmp_path, scenario) as (codex, recorder):
        result = await codex.exec("go")
    assert (codex.workdir / "hello.txt").read_text() == "hello\n"
    assert [item["type"] for item in recorder.sent("response.append")[0].body["input"]] == ["custom_tool_call_output"]
    assert "hello.txt" in result.final_text
    assert recorder.outline() == ["response.create", "response.done", "response.append", "response.completed"]


async def test_timing_comes_before_each_terminal_when_asked_for(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, ROUNDS, timing=True) as (codex, recorder):
        result = await codex.exec("go")
    assert result.final_text.startswith("All is done")
    assert recorder.sockets[0].headers["x-responsesapi-include-timing-metrics"] == "true"
    received = [frame.type for frame in recorder.received()]
    ends = [place for place, type_ in enumerate(received) if type_ in ("response.done", "response.completed")]
    assert [received[place - 1] for place in ends] == ["responsesapi.websocket_timing"] * 4
    metrics = recorder.received("responsesapi.websocket_timing")[0].body["timing_metrics"]
    assert all(isinstance(value, int | float) and value >= 0 for value in metrics.values()) and metrics


# --- several turns -----------------------------------------------------------------------------------------------


async def test_a_run_kept_open_carries_both_turns(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, TALK, keep_open=True) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        assert await app.say(thread, "apple") == "You said apple."
        assert await app.say(thread, "pear") == "You said pear."
    assert recorder.outline() == ["response.create", "response.done", "response.append", "response.done"]
    message = recorder.sent("response.append")[0].body["input"][-1]
    assert (message["type"], message["role"]) == ("message", "user")
    assert len(recorder.received("response.created")) == 1
    assert [frame.socket for frame in recorder.sent()] == [0, 0]


async def test_a_run_not_kept_open_is_followed_by_a_second_create(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, TALK) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        assert await app.say(thread, "apple") == "You said apple."
        assert await app.say(thread, "pear") == "You said pear."
    assert recorder.outline() == ["response.create", "response.completed"] * 2
    assert "You said apple." in str(recorder.sent("response.create")[1].body["input"])


async def test_changed_settings_supersede_the_run_that_waits(binary: Path, tmp_path: Path):
    async with open_codex(binary, tmp_path, TALK, keep_open=True) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        assert await app.say(thread, "apple") == "You said apple."
        assert await app.say(thread, "pear", effort="high") == "You said pear."
        assert await app.say(thread, "plum") == "You said plum."
    assert recorder.outline() == [*["response.create", "response.done"] * 2, "response.append", "response.done"]
    efforts = [frame.body["reasoning"]["effort"] for frame in recorder.sent("response.create")]
    assert efforts == ["medium", "high"]
    ids = [frame.body["response"]["id"] for frame in recorder.received("response.done")]
    assert ids[0] != ids[1] == ids[2]


# --- what goes wrong ---------------------------------------------------------------------------------------------


async def test_an_append_after_the_pause_expired_is_not_found_and_the_turn_goes_on(binary: Path, tmp_path: Path):
    scenario = SLOW_TOOL.replace("SECONDS", "1.5")
    async with open_codex(binary, tmp_path, scenario, max_retries=1, pause_ttl_s=0.5) as (codex, recorder):
        result = await codex.exec("go")
    assert result.final_text.startswith("To go: ") and "run" in result.final_text
    assert recorder.outline() == [
        "response.create",
        "response.done",
        "response.append",
        "error",
        "response.create",
        "response.completed",
    ]
    assert recorder.received("error")[0].body["status"] == 404
    assert [frame.socket for frame in recorder.sent()] == [0, 0, 1]
    assert recorder.sent()[2].body["input"][-1]["type"] == "function_call_output"
    assert (codex.workdir / "runs.txt").read_text() == "run\n", "the tool ran again"


async def test_a_connection_lost_at_a_pause_does_not_end_the_turn(binary: Path, tmp_path: Path):
    scenario = SLOW_TOOL.replace("SECONDS", "1")
    async with (
        open_codex(binary, tmp_path, scenario, max_retries=1) as (codex, recorder),
        trio.open_nursery() as nursery,
    ):
        results: list[ExecResult] = []
        nursery.start_soon(_exec_into, codex, results)
        await recorder.wait_until(lambda: bool(recorder.received("response.done")))
        recorder.sockets[0].cut()
    assert results[0].final_text.startswith("To go: ") and "run" in results[0].final_text
    assert recorder.outline() == ["response.create", "response.done", "response.create", "response.completed"]
    assert [frame.socket for frame in recorder.sent()] == [0, 1]
    assert (codex.workdir / "runs.txt").read_text() == "run\n", "the tool ran again"


async def _exec_into(codex: Codex, results: list[ExecResult]) -> None:
    results.append(await codex.exec("go"))


async def test_the_end_of_codex_ends_its_run_at_once(binary: Path, tmp_path: Path):
    # One run per key: the second process would be refused while the first one's run still sampled.
    scenario = LONG.replace("WORDS", "100000")
    async with open_codex(binary, tmp_path, scenario, max_runs_per_principal=1) as (codex, recorder):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(codex.exec, "go")
            await recorder.wait_until(lambda: len(recorder.received("response.output_text.delta")) > 20)
            nursery.cancel_scope.cancel()
        await recorder.sockets[0].ended.wait()
        assert (await codex.exec("once again")).final_text == "Here I am."
    assert recorder.outline() == ["response.create", "response.create", "response.completed"]


async def test_an_interrupt_of_the_model_leaves_the_next_turn_whole(binary: Path, tmp_path: Path):
    """Codex tells the server nothing: a task of its own reads the step to its end, and the next turn waits for that."""
    scenario = LONG.replace("WORDS", "200")
    async with open_codex(binary, tmp_path, scenario) as (codex, recorder), codex.open_app_server() as app:
        thread = await app.start_thread()
        turn = await app.start_turn(thread, "go")
        await recorder.wait_until(lambda: len(recorder.received("response.output_text.delta")) > 20)
        await app.interrupt(thread, turn)
        assert await app.say(thread, "again") == "Here I am."
    assert recorder.outline() == ["response.create", "response.completed"] * 2
    assert [frame.socket for frame in recorder.sent()] == [0, 0]


@pytest.mark.parametrize("keep_open", [False, True])
async def test_an_interrupt_of_a_tool_leaves_the_next_turn_whole(binary: Path, tmp_path: Path, keep_open: bool):
    """Codex answers the call with "aborted by user", before the turn ends or with the next user message: a race of its
    own. In the first case it throws away the step that follows, and creates anew."""
    scenario = SLOW_TOOL.replace("SECONDS", "30")
    async with (
        open_codex(binary, tmp_path, scenario, keep_open=keep_open) as (codex, recorder),
        codex.open_app_server() as app,
    ):
        thread = await app.start_thread()
        turn = await app.start_turn(thread, "go")
        await app.wait_notification("item/started", lambda params: params["item"]["type"] == "commandExecution")
        await recorder.wait_until(lambda: bool(recorder.received("response.done")))
        await app.interrupt(thread, turn)
        assert (await app.say(thread, "again")).startswith("To again: aborted by user")
    end = "response.done" if keep_open else "response.completed"
    in_one_append = ["response.create", "response.done", "response.append", end]
    assert recorder.outline() in (in_one_append, [*in_one_append, "response.create", end])
    assert {frame.socket for frame in recorder.sent()} == {0}


# --- other versions, other models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "beta", "num_echoed"),
    [
        ("0.98.0", None, 3),  # no header, and every append starts with what the step before has made
        ("0.100.0", "responses_websockets=2026-02-04", 0),
    ],
)
async def test_earlier_versions_append_too(tmp_path: Path, version: str, beta: str | None, num_echoed: int):
    async with open_codex(codex_binary(version), tmp_path, ROUNDS) as (codex, recorder):
        result = await codex.exec("go")
    assert result.final_text.startswith("All is done") and result.final_text.endswith("2\n")
    assert recorder.outline() == ["response.create", *["response.done", "response.append"] * 3, "response.completed"]
    assert len(recorder.sockets) == 1 and recorder.sockets[0].headers.get("openai-beta") == beta
    assert len(recorder.sent("response.append")[0].body["input"]) == num_echoed + 2
