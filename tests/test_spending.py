"""What a server writes into its ledger, and whom its budgets turn away."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.budget import Limits
from engine.ledger import Ended, Started
from engine.ledger_database import LedgerDatabase
from engine.ledger_fake import MemoryLedger
from engine.settings import Settings
from engine.sqlite_ledger import open_ledger
from engine.store_fake import MemoryStore
from tests.kept import as_of_now, paused_run, resume
from tests.served import TWO_CALLS, Client, open_served, pending
from tests.test_compaction import LONG, STEPS, THRESHOLD

HELLO = "model: test\nsteps:\n  - text: Hello there.\n"
SLOW = "model: test\npace: {ttft_ms: 100, tokens_per_second: 10}\nsteps:\n  - text: {tokens: 100}\n"


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


async def finish(client: Client, keys: list[str]) -> dict[str, Any]:
    """Answer the calls; the terminal that follows."""
    await client.answer(*((key, "seen") for key in keys))
    terminal: dict[str, Any] = (await client.step())[-1]
    return terminal


def told(terminal: dict[str, Any]) -> tuple[int, int, int]:
    """The tokens that a terminal tells of."""
    usage = terminal["response"]["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def recorded(ledger: MemoryLedger) -> list[tuple[int, int, int]]:
    return [(one.input_tokens, one.cached_tokens, one.output_tokens) for one in ledger.segments]


# --- what is recorded ----------------------------------------------------------------------------------------------


async def test_every_step_is_recorded_with_what_its_terminal_tells(ledger: MemoryLedger) -> None:
    """P103: stored or not, once, for the hash of the key, before the client learns of it."""
    headers = [(b"authorization", b"Bearer secret")]
    async with open_served(ledger=ledger) as server, server.connect(headers=headers) as client:
        response_id, keys, frames = await paused_run(client, store=False)
        assert recorded(ledger) == [told(frames[-1])]
        ended = await finish(client, keys)
        assert recorded(ledger) == [told(frames[-1]), told(ended)]
    await wait_all_tasks_blocked()
    start, *segments, end = ledger.records
    assert isinstance(start, Started) and isinstance(end, Ended)
    assert {one.response_id for one in ledger.records} == {response_id}
    assert [(one.segment, one.reason, one.model) for one in ledger.segments] == [
        (0, "stop", "script:test"),
        (1, "stop", "script:test"),
    ]
    assert len({start.principal, *(one.principal for one in ledger.segments)}) == 1
    assert "secret" not in start.principal != "local"
    assert end.status == "completed"
    assert 0 < ended["response"]["timing"]["step"]["ledger_ms"] < 1000
    assert len(segments) == 2


@pytest.mark.parametrize("lifecycle", ["chain", "inject"])
async def test_other_lifecycles_are_recorded_too(ledger: MemoryLedger, lifecycle: str) -> None:
    async with open_served(HELLO, ledger=ledger, lifecycle=lifecycle) as server, server.connect() as client:
        await client.create()
        assert [told((await client.step())[-1])] == recorded(ledger)


async def test_http_is_recorded_too(ledger: MemoryLedger) -> None:
    async with open_served(HELLO, ledger=ledger) as server:
        reply = await server.http().create()
        assert [told({"response": reply.json})] == recorded(ledger)
        assert ledger.segments[0].principal == "local"


async def test_what_was_only_prepared_is_recorded_and_spends_nothing(ledger: MemoryLedger) -> None:
    async with open_served(HELLO, ledger=ledger) as server, server.connect() as client:
        await client.create(generate=False)
        assert [told((await client.step())[-1])] == recorded(ledger)
    (segment,) = ledger.segments
    assert (segment.reason, segment.num_computed) == ("prepared", 0)


async def test_summary_is_a_segment(ledger: MemoryLedger) -> None:
    async with open_served(STEPS, ledger=ledger, lifecycle="chain") as server, server.connect() as client:
        await client.create(input=LONG, context_management=THRESHOLD)
        ended = (await client.step())[-1]["response"]
        assert [(one.segment, one.reason) for one in ledger.segments] == [(0, "summary"), (1, "stop")]
        assert sum(one.output_tokens for one in ledger.segments) == ended["run_usage"]["output_tokens"]
        reply = await server.http().post("/v1/responses/compact", model="test", input="the task")
        segment = ledger.segments[-1]
        assert (segment.response_id, segment.reason) == (reply.json["id"], "summary")
        assert segment.output_tokens == reply.json["usage"]["output_tokens"]


async def test_summary_that_is_cut_is_recorded(ledger: MemoryLedger, autojump_clock: MockClock) -> None:
    slow = STEPS.replace("summary:", "pace: {ttft_ms: 10000}\nsummary:")
    async with open_served(slow, ledger=ledger) as server, server.connect() as client:
        await client.create(input=LONG, context_management=THRESHOLD)
        await client.until("response.compaction.compacting")
        await client.send("response.cancel")
        await client.step()
        assert [(one.reason, one.output_tokens) for one in ledger.segments] == [("cut", 0)]
        with trio.move_on_after(1):
            await server.http().post("/v1/responses/compact", model="test", input="the task")
        await trio.sleep(1)
        assert [one.reason for one in ledger.segments] == ["cut", "cut"]
        assert isinstance(ledger.records[-1], Ended) and ledger.records[-1].status == "incomplete"


async def test_compaction_on_request_sets_tokens_aside(autojump_clock: MockClock) -> None:
    """P104: several at once do not pass together."""
    ledger = MemoryLedger(Limits(1000, 0, "total"))
    slow = STEPS.replace("summary:", "pace: {ttft_ms: 100}\nsummary:")
    async with open_served(slow, ledger=ledger) as server:
        statuses: list[int] = []

        async def compact() -> None:
            reply = await server.http().post("/v1/responses/compact", model="test", input="the task")
            statuses.append(reply.status)

        for expected in ([200, 429], [200, 200, 429]):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(compact)
                if len(expected) == 2:
                    nursery.start_soon(compact)
            assert sorted(statuses) == expected


async def test_step_that_is_cut_is_recorded_as_far_as_it_came(ledger: MemoryLedger, autojump_clock: MockClock) -> None:
    async with open_served(SLOW, ledger=ledger) as server, server.connect() as client:
        await client.create()
        await client.until("response.output_text.delta")
        await client.send("response.cancel")
        assert (await client.step())[-1]["response"]["usage"] is None
    (segment,) = ledger.segments
    assert (segment.reason, segment.cached_tokens) == ("cut", 0)
    assert segment.input_tokens > 0 and 0 < segment.output_tokens < 100
    assert ledger.records[-1] == Ended(segment.response_id, ledger.records[-1].at, "incomplete")  # type: ignore[union-attr]


async def test_step_that_fails_is_recorded_as_far_as_it_came(ledger: MemoryLedger) -> None:
    failing = "model: test\nsteps:\n  - text: {tokens: 20}\n    fail: {after_tokens: 5}\n"
    async with open_served(failing, ledger=ledger) as server, server.connect() as client:
        await client.create()
        assert (await client.step())[-1]["type"] == "response.failed"
    (segment,) = ledger.segments
    assert (segment.reason, segment.output_tokens > 0) == ("cut", True)


async def test_step_that_a_policy_stops_is_recorded_with_what_was_sampled(ledger: MemoryLedger) -> None:
    policy = {"name": "greetings", "kind": "patterns", "patterns": ["there"], "on": ["output"]}
    async with open_served(HELLO, ledger=ledger, policies=[policy]) as server, server.connect() as client:
        await client.create()
        ended = (await client.step())[-1]
        assert ended["response"]["incomplete_details"] == {
            "reason": "content_filter",
            "policy": "greetings",
            "place": "output",
        }
    assert [(one.reason, *counted) for one, counted in zip(ledger.segments, recorded(ledger), strict=True)] == [
        ("content_filter", *told(ended))
    ]


async def test_pause_that_ends_leaves_no_further_segment(ledger: MemoryLedger) -> None:
    async with open_served(ledger=ledger) as server, server.connect() as client:
        await paused_run(client)
        await client.send("response.cancel")
        await client.step()
    assert len(ledger.segments) == 1
    assert [one.status for one in ledger.records if isinstance(one, Ended)] == ["incomplete"]


async def test_run_that_is_taken_up_numbers_its_segments_on_whatever_is_left(ledger: MemoryLedger) -> None:
    store, later = MemoryStore(), MemoryLedger(Limits(10, 10, "total"), {"local": 20})
    async with open_served(store=store, ledger=ledger) as server, server.connect() as client:
        response_id, keys, _ = await paused_run(client)
        left = as_of_now(store)
    async with open_served(store=left, ledger=later) as server, server.connect() as client:
        await resume(client, response_id, -1)
        assert pending(await client.step()) == keys
        assert (await finish(client, keys))["type"] == "response.completed"
        await client.create()
        assert (await client.step())[-1]["error"]["code"] == "insufficient_quota"
    segments = [*ledger.segments, *later.segments]
    assert [(one.response_id, one.segment) for one in segments] == [(response_id, 0), (response_id, 1)]
    assert [one.response_id for one in later.records if isinstance(one, Started)] == [response_id]


async def test_step_that_is_sampled_again_is_recorded_again(ledger: MemoryLedger) -> None:
    """P105: its first record was kept and its end was not stored, so both have been told, and paid for."""
    store = MemoryStore()
    async with open_served(store=store, ledger=ledger) as server, server.connect() as client:
        response_id, keys, _ = await paused_run(client)
        left = as_of_now(store)
        await finish(client, keys)
    async with open_served(store=left, ledger=ledger) as server, server.connect() as client:
        await resume(client, response_id, -1)
        ended = await finish(client, pending(await client.step()))
    assert [one.segment for one in ledger.segments] == [0, 1, 2]
    assert recorded(ledger)[-1] == told(ended)


# --- what it holds up ----------------------------------------------------------------------------------------------


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Commits wait until this is set."""
    free, commit = Event(), LedgerDatabase.commit

    def wait_and_commit(database: LedgerDatabase) -> None:
        free.wait(20)
        commit(database)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerDatabase, "commit", wait_and_commit)
        yield free
        free.set()


async def test_next_step_is_sampled_while_the_last_one_goes_to_disk(tmp_path: Path, stuck: Event) -> None:
    """P106"""
    stuck.set()
    async with open_ledger(Settings(data_dir=tmp_path, ledger_commit_ms=0)) as ledger:
        stuck.clear()
        async with open_served(ledger=ledger) as server, server.connect() as client:
            _, keys, _ = await paused_run(client)
            assert (await finish(client, keys))["type"] == "response.completed"
        stuck.set()


async def test_with_the_switch_a_step_ends_when_it_is_on_disk(tmp_path: Path, stuck: Event) -> None:
    """P106"""
    stuck.set()
    async with open_ledger(Settings(data_dir=tmp_path, ledger_commit_ms=0)) as ledger:
        stuck.clear()
        async with open_served(ledger=ledger, ledger_wait=True) as server, server.connect() as client:
            await client.create()
            types = []
            with trio.move_on_after(0.2):
                while True:
                    types.append((await client.receive())["type"])
            assert types[-1] == "response.output_item.done"
            stuck.set()
            assert [frame["type"] for frame in await client.step()] == ["response.done"]


# --- whom budgets turn away ----------------------------------------------------------------------------------------


async def test_budget_turns_runs_away_before_they_start() -> None:
    """P104: with the API's code, on both transports."""
    ledger = MemoryLedger(Limits(0, 100, "total"))
    async with open_served(HELLO, ledger=ledger) as server, server.connect() as client:
        await client.create(max_output_tokens=200)
        (refused,) = await client.step()
        assert (refused["status"], refused["error"]["code"], refused["error"]["type"]) == (
            429,
            "insufficient_quota",
            "insufficient_quota",
        )
        reply = await server.http().create(stream=True)  # 1024 are set aside where no limit is named
        assert (reply.status, reply.error["code"]) == (429, "insufficient_quota")
        assert reply.headers["x-should-retry"] == "false"
        assert ledger.records == []
        await client.create(max_output_tokens=5)
        assert (await client.step())[-1]["type"] == "response.completed"
        assert (await server.http().create(max_output_tokens=5)).status == 200


async def test_guess_at_what_a_run_samples_is_a_setting() -> None:
    ledger = MemoryLedger(Limits(0, 100, "total"))
    async with open_served(HELLO, ledger=ledger, reserved_output_tokens=5) as server:
        assert (await server.http().create()).status == 200


async def test_budget_is_of_each_key() -> None:
    ledger = MemoryLedger(Limits(0, 100, "total"))
    async with open_served(TWO_CALLS, ledger=ledger, reserved_output_tokens=5) as server:
        assert (await server.http().create(max_output_tokens=80, input="hi")).status == 200
        while (reply := await server.http().create()).status == 200:
            pass
        assert reply.error["code"] == "insufficient_quota"
        assert (await server.http("another key").create()).status == 200


async def test_run_that_has_started_goes_on_to_its_end() -> None:
    """P104"""
    ledger = MemoryLedger(Limits(0, 200, "total"))
    async with (
        open_served(ledger=ledger, reserved_output_tokens=5, keep_open=True) as server,
        server.connect() as client,
        server.connect() as other,
    ):
        _, keys, _ = await paused_run(client)
        while (await server.http().create(max_output_tokens=5)).status == 200:
            pass
        await other.create(max_output_tokens=5)
        assert (await other.step())[-1]["error"]["code"] == "insufficient_quota"
        assert pending([await finish(client, keys)]) == []  # it is kept open
        await client.send("response.append", input="and now?")
        refused = await client.receive()
        assert refused["error"]["code"] == "insufficient_quota"
        await client.send("response.cancel")
        assert (await client.step())[-1]["type"] == "response.incomplete"


async def test_input_that_is_refused_sets_nothing_aside() -> None:
    ledger = MemoryLedger(Limits(0, 100, "total"))
    async with open_served(HELLO, ledger=ledger) as server:
        for _ in range(30):
            assert (await server.http().create(input=[{"role": "user"}])).status == 400
        assert (await server.http().create(max_output_tokens=5)).status == 200
