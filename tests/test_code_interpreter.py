"""hosted/code_interpreter.py: the model's Python as items and events, in responses that go on."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engine.hosted.code_interpreter import CodeInterpreterHost
from engine.hosted.configured import open_hosts
from engine.hosted.containers import Containers
from engine.hosted.limited import End, Outcome, resident_bytes
from engine.hosted.sandbox import Folder, SandboxLimits, SandboxMissing
from engine.settings import Settings
from tests.hosted_kinds import about_first, frames_of, item_of, of_openai, scenario, text_of, types_of
from tests.served import Served, open_served

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]
CODE = "print(6 * 7)"
ON = {"code_interpreter": True}


class FakeSandbox:
    """Programs put out what they are told, and say where they ran."""

    def __init__(self, outcome: Outcome = Outcome(End.EXITED, 0, b"42\n")) -> None:  # noqa: B008 - frozen
        self._outcome = outcome
        self.ran: list[tuple[str, Folder]] = []

    async def run(self, code: str, folder: Folder) -> Outcome:
        self.ran.append((code, folder))
        return self._outcome


@asynccontextmanager
async def serving(sandbox: FakeSandbox, code: str = CODE, **settings: Any) -> AsyncIterator[Served]:
    """A server whose model runs a program and quotes its output."""
    async with Containers.open(idle_s=100, max_containers=9) as containers:
        host = CodeInterpreterHost(sandbox, SandboxLimits(), containers)
        name = "code_interpreter"
        async with open_served(scenario(name, code=code), hosts={name: host}, **ON, **settings) as served:
            yield served


async def test_a_program_is_an_item_with_all_its_events() -> None:
    """vllm-project/vllm#23409: a hosted interpreter did not stream its events."""
    sandbox = FakeSandbox()
    async with serving(sandbox, code="x" * 4500) as served:
        frames = await frames_of(served, AUTO, include=OUTPUTS)
    about = about_first(frames)
    assert types_of(about) == [
        "output_item.added", "code_interpreter_call.in_progress", *["code_interpreter_call_code.delta"] * 3,
        "code_interpreter_call_code.done", "code_interpreter_call.interpreting", "code_interpreter_call.completed",
        "output_item.done",
    ]  # fmt: skip
    assert "".join(frame["delta"] for frame in about[2:5]) == about[5]["code"] == "x" * 4500
    container = about[0]["item"]["container_id"]
    assert container.startswith("cntr_")
    assert item_of(frames) == {
        "type": "code_interpreter_call", "status": "completed", "container_id": container, "code": "x" * 4500,
        "outputs": [{"type": "logs", "logs": "42\n"}],
    }  # fmt: skip
    assert about[0]["item"]["status"] == "in_progress"
    assert text_of(frames) == "It says 42"
    assert [code for code, _ in sandbox.ran] == ["x" * 4500]


async def test_outputs_are_shown_to_those_who_ask() -> None:
    async with serving(FakeSandbox()) as served:
        assert item_of(await frames_of(served, AUTO))["outputs"] is None


@pytest.mark.parametrize(
    ("outcome", "told", "logs"),
    [
        (
            Outcome(End.EXITED, 1, b"Traceback: no\n"),
            "Traceback: no\nThe program ended with exit status 1.",
            "Traceback: no\n",
        ),
        (Outcome(End.TOO_SLOW, -1, b""), "The program was stopped: it ran longer than 60 s.", None),
        (Outcome(End.EXITED, 0, b""), "(no output)", None),
        (Outcome(End.EXITED, 0, b"\xff\n"), "\ufffd", "\ufffd\n"),
    ],
)
async def test_how_a_program_ended_is_told(outcome: Outcome, told: str, logs: str | None) -> None:  # P141
    async with serving(FakeSandbox(outcome)) as served:
        frames = await frames_of(served, AUTO, include=OUTPUTS)
    assert text_of(frames) == f"It says {told}"
    item = item_of(frames)
    assert item["outputs"] == ([{"type": "logs", "logs": logs}] if logs else [])
    is_good = outcome.status == 0
    assert item["status"] == ("completed" if is_good else "failed")
    assert ("code_interpreter_call.completed" in types_of(frames)) is is_good


async def test_files_stay_along_a_chain_and_by_the_containers_id() -> None:  # P140
    sandbox = FakeSandbox()
    async with serving(sandbox, lifecycle="chain") as served:
        first = await frames_of(served, AUTO)
        container = item_of(first)["container_id"]
        async with served.connect() as client:
            await client.create(tools=[AUTO], input="again")
            again = await client.step()
            await client.create(tools=[AUTO], input="go on", previous_response_id=again[-1]["response"]["id"])
            going_on = await client.step()
        named = await frames_of(served, {"type": "code_interpreter", "container": container})
    assert item_of(again)["container_id"] != container
    assert item_of(going_on)["container_id"] == item_of(again)["container_id"]
    assert item_of(named)["container_id"] == container
    folders = [folder for _, folder in sandbox.ran]
    assert [folders.index(folder) for folder in folders] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("container", "param", "status"),
    [
        ("cntr_unknown", "tools[0].container", 404),
        ({"type": "manual"}, "tools[0].container.type", 400),
        (None, "tools[0].container", 400),
        ({"type": "auto", "file_ids": ["file-1"]}, "tools[0].container.file_ids", 400),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, "tools[0].container.network_policy", 400),
    ],
)
async def test_a_container_that_cannot_be_had_is_refused(container: Any, param: str, status: int) -> None:
    async with serving(FakeSandbox()) as served, served.connect() as client:
        await client.create(tools=[{"type": "code_interpreter", "container": container}])
        frame = (await client.step())[-1]
    assert (frame["error"]["param"], frame["status"]) == (param, status)


async def test_a_container_that_expires_in_a_run_fails_its_calls(autojump_clock: trio.testing.MockClock) -> None:
    code = '{"name": "code_interpreter", "arguments": {"code": "1"}}'
    steps = (
        f"model: test\nsteps:\n  - {{call: {{name: get_weather}}}}\n  - {{call: {code}}}\n  - text: '{{last_output}}'"
    )
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    async with Containers.open(idle_s=100, max_containers=9) as containers:
        host = CodeInterpreterHost(FakeSandbox(), SandboxLimits(), containers)
        async with open_served(steps, hosts={"code_interpreter": host}, **ON) as served, served.connect() as client:
            await client.create(tools=[function, AUTO])
            frames = await client.step()
            await trio.sleep(101)
            await client.answer((frames[-1]["response"]["pending"][0]["answer_key"], "ok"))
            assert "have expired" in text_of(await client.step())


async def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    host_name = "code_interpreter"
    async with Containers.open(idle_s=100, max_containers=9) as containers:
        host = CodeInterpreterHost(FakeSandbox(), SandboxLimits(), containers)
        async with open_served(scenario(host_name, source=1), hosts={host_name: host}, **ON) as served:
            frames = await frames_of(served, AUTO)
    assert "missing required field `code`" in text_of(frames)
    assert item_of(frames)["status"] == "failed"


async def test_where_it_is_off_it_is_skipped_or_refused_by_name() -> None:
    for skips in (True, False):
        async with open_served(skip_unknown_tools=skips) as served, served.connect() as client:
            await client.create(tools=[AUTO])
            frame = (await client.until("response.created" if skips else "error"))[-1]
            if skips:
                assert frame["response"]["skipped_tools"][0]["type"] == "code_interpreter"
            else:
                assert "'code_interpreter' is not supported" in frame["error"]["message"]


async def test_where_the_sandbox_is_missing_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.hosted.sandbox.shutil.which", lambda name, **options: None)
    with pytest.raises(SandboxMissing, match="code_interpreter needs bubblewrap"):
        async with open_hosts(Settings(code_interpreter=True)):
            pass


@pytest.mark.sandbox
async def test_in_the_real_sandbox_with_the_limits_of_the_settings() -> None:
    name = "code_interpreter"
    settings = Settings(code_interpreter=True, code_timeout_s=10, max_code_output_bytes=50)
    for code, told in [("sum(range(10))", "45"), ("while True: print(1)", "more than 50 bytes of output")]:
        async with open_hosts(settings) as hosts, open_served(scenario(name, code=code), hosts=hosts, **ON) as served:
            assert told in text_of(await frames_of(served, AUTO))


ATTACKS = [
    "while True: print('x' * 10_000)",
    "x = bytearray(10 << 30)",
    "import os\nfor _ in range(5):\n    if os.fork() == 0: break\nx = b'x' * (100 << 20)\nimport time; time.sleep(60)",
    "import os\nwhile True: os.fork()",
]


@pytest.mark.sandbox
async def test_attacks_harm_neither_the_server_nor_other_runs() -> None:  # P141
    """All at once, beside a run whose tools answer as ever; the server's memory stays what it was."""
    name = "code_interpreter"
    settings = Settings(
        code_interpreter=True, code_timeout_s=10, max_code_memory_bytes=200 << 20, max_code_processes=16
    )
    ended: list[str] = []
    async with open_hosts(settings) as hosts, trio.open_nursery() as nursery:

        async def attack(code: str) -> None:
            async with open_served(scenario(name, code=code), hosts=hosts, **ON) as served:
                ended.append(item_of(await frames_of(served, AUTO))["status"])

        async with open_served(scenario(name, code="1 + 1"), hosts={name: hosts[name]}, **ON) as served:
            await frames_of(served, AUTO)
            before = resident_bytes(os.getpid())
            for code in ATTACKS:
                nursery.start_soon(attack, code)
            while len(ended) < len(ATTACKS):
                assert text_of(await frames_of(served, AUTO)) == "It says 2"
                memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                assert memory - before < 30 << 20
    assert ended == ["failed"] * len(ATTACKS)


@pytest.mark.peer
async def test_events_are_openais() -> None:
    async with serving(FakeSandbox()) as served:
        of_openai(await frames_of(served, AUTO, include=OUTPUTS))
