"""Runs that outlive their server: kept step by step, read and gone on from after that, taken up by the next one."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.errors import ServerError
from engine.sealing import KEY_BYTES
from engine.settings import Settings
from engine.sqlite_store import open_store
from engine.store_fake import MemoryStore
from tests.kept import as_of_now, numbers, paused_run, resume
from tests.served import FUNCTION, Client, open_served

HELLO = "model: test\nsteps:\n  - text: Hello there.\n"
STALLED = """
model: test
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - [{text: x}, {stall: 2}, {text: " y"}]
"""
EARLY = """
model: test
steps:
  - [{calls: [{name: look, arguments: {n: 1}}]}, {stall: 2}, {text: Wait.}]
  - [{text: x}, {stall: 2}, {text: " y"}]
"""
SLOW = """
model: test
steps:
  - [{text: x}, {stall: 2}, {text: " y"}]
"""
COMPACTING = """
model: test
summary: They look at things.
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - calls: [{name: look, arguments: {n: 2}}]
  - text: Done.
  - text: More.
"""
ASKED = {"role": "user", "content": "go"}
KEY = [(b"authorization", b"Bearer other")]


# --- read --------------------------------------------------------------------------------------------------------


async def test_an_ended_response_is_read_from_the_store() -> None:  # P80
    store = MemoryStore()
    async with open_served(HELLO, store=store) as server, server.connect() as client:
        await client.create(metadata={"a": "b"})
        frames = await client.step()
        ended = frames[-1]["response"]
        assert ended["store"] is True
    async with open_served(HELLO, store=store) as server:
        reply = await server.http().ask("GET", f"/v1/responses/{ended['id']}")
        assert (reply.status, reply.json) == (200, ended)
        async with server.http().stream("GET", f"/v1/responses/{ended['id']}?stream=true") as stream:
            assert await stream.rest() == frames


@pytest.mark.parametrize("store", [MemoryStore(), None])
async def test_what_is_not_to_be_stored_says_so_and_is_not_there(store: MemoryStore | None) -> None:  # P80
    async with open_served(HELLO, store=store) as server:
        async with server.connect() as client:
            await client.create(**({"store": False} if store else {}))
            ended = (await client.step())[-1]["response"]
        assert ended["store"] is False
        await wait_all_tasks_blocked()
        reply = await server.http().ask("GET", f"/v1/responses/{ended['id']}")
        assert (reply.status, reply.error["code"]) == (404, "response_not_found")


async def test_a_stored_response_is_there_for_its_key_alone() -> None:  # P4
    store = MemoryStore()
    async with open_served(HELLO, store=store) as server, server.connect() as client:
        await client.create()
        response_id = (await client.step())[-1]["response"]["id"]
    async with open_served(HELLO, store=store) as server:
        reply = await server.http("other").ask("GET", f"/v1/responses/{response_id}")
        assert (reply.status, reply.error["message"]) == (404, f"Response with id '{response_id}' not found.")
        async with server.connect(headers=KEY) as client:
            assert (await resume(client, response_id, -1))["error"]["code"] == "response_not_found"


FAILING = "  - fail: {code: model_error, message: Broken.}\n"
CALLING = "model: test\nsteps:\n  - calls: [{name: look, arguments: {n: 1}}]\n"
ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "it failed at once": ("model: test\nsteps:\n" + FAILING, {}, "failed"),
    "it failed later": (CALLING + FAILING, {}, "failed"),
    "it was only prepared": (HELLO, {"generate": False}, "completed"),
    "it only compacted": (HELLO, {"input": [ASKED, {"type": "compaction_trigger"}]}, "completed"),
    "it had no room": (HELLO, {"max_output_tokens": 1}, "incomplete"),
}


@pytest.mark.parametrize(("scenario", "fields", "status"), ENDS.values(), ids=ENDS)
async def test_a_response_is_stored_as_it_ended(scenario: str, fields: dict[str, Any], status: str) -> None:  # P80
    store = MemoryStore()
    async with open_served(scenario, store=store) as server, server.connect() as client:
        await client.create(**fields)
        frames = await client.step()
        if frames[-1]["type"] == "response.done":
            await client.answer((frames[-1]["response"]["pending"][0]["answer_key"], "a"))
            frames += (await client.step())[1:]
        told = frames[-1]["response"]
        assert told["status"] == status
        killed = as_of_now(store)
    path = f"/v1/responses/{told['id']}"
    async with open_served(store=killed) as server:
        assert (await server.http().get(path)).json == told
        async with server.http().stream("GET", f"{path}?stream=true") as stream:
            assert [event for event in await stream.rest() if event["type"] != "error"] == frames


async def test_what_another_servers_key_has_sealed_is_this_servers_fault() -> None:
    store = MemoryStore()
    async with open_served(HELLO, store=store) as server, server.connect() as client:
        await client.create(input=[ASKED, {"type": "compaction_trigger"}, ASKED])
        path = f"/v1/responses/{(await client.step())[-1]['response']['id']}"
    async with open_served(store=store, key=bytes([1] * KEY_BYTES)) as server:
        for query in ("", "?stream=true"):
            reply = await server.http().get(path + query)
            assert (reply.status, reply.error["code"]) == (500, "server_error")
            assert "another key" in reply.error["message"]


async def test_nothing_of_an_unstored_response_is_in_the_data_folder(tmp_path: Path) -> None:  # P80
    fields = {"instructions": "secret one", "input": "secret two", "metadata": {"a": "secret three"}}
    settings = Settings(data_dir=tmp_path, store_commit_ms=0)
    async with open_store(settings) as store:
        async with open_served(store=store) as server, server.connect() as client:
            for is_stored in (False, True):
                fields = json.loads(json.dumps(fields).replace("secret", "open")) if is_stored else fields
                _, (one, two), _ = await paused_run(client, store=is_stored, **fields)
                word = "open" if is_stored else "secret"
                await client.answer((one, f"{word} four"), (two, f"{word} five"))
                await client.step()
        await store.wait_durable()
        files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert any(b"open five" in held for held in files.values())
    assert not any(b"secret" in held for held in files.values())


# --- gone on from ------------------------------------------------------------------------------------------------


CHAIN = """
model: test
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - text: "Seen {last_output}."
  - text: "You said {last_user}."
"""
ANSWER = {"type": "function_call_output", "output": "snow"}


async def chained(store: MemoryStore, **settings: Any) -> tuple[str, dict[str, Any]]:
    """A response that has completed with a call, on a server that is gone; its id, and what answers it."""
    async with open_served(CHAIN, store=store, lifecycle="chain", **settings) as server, server.connect() as client:
        await client.create(instructions="Be kind.")
        ended = (await client.step())[-1]["response"]
    return ended["id"], ANSWER | {"call_id": ended["output"][0]["call_id"]}


@pytest.mark.parametrize("instructions", ["Be kind.", "Be brief."])
async def test_a_chain_goes_on_on_another_connection_of_another_server(instructions: str) -> None:  # P81
    store = MemoryStore()
    first, answer = await chained(store)
    for _ in range(2):  # the response before is a stored one, then one of two servers ago
        async with open_served(CHAIN, store=store, lifecycle="chain") as server, server.connect() as client:
            await client.create(previous_response_id=first, input=[answer], instructions=instructions)
            second = (await client.step())[-1]["response"]
            assert second["output"][0]["content"][0]["text"] == "Seen snow."
            is_new = instructions != "Be kind."
            assert second["timing"]["step"]["items_new"] == (3 if is_new else 1)
            await client.create(previous_response_id=second["id"], input="ho", instructions=instructions)
            third = (await client.step())[-1]["response"]
            assert third["output"][0]["content"][0]["text"] == "You said ho."
            assert third["timing"]["step"]["items_new"] == 1


async def test_a_stored_chain_goes_on_by_http_and_both_ways() -> None:  # P81
    store = MemoryStore()
    first, answer = await chained(store)
    async with open_served(CHAIN, store=store, lifecycle="chain") as server:
        reply = await server.http().create(previous_response_id=first, input=[answer], tools=[FUNCTION])
        assert reply.json["output"][0]["content"][0]["text"] == "Seen snow."
        assert reply.json["previous_response_id"] == first
        counted = await server.http().post("/v1/responses/input_tokens", previous_response_id=first, input=[answer])
        assert counted.json["input_tokens"] > 0
        async with server.connect() as client:
            await client.create(previous_response_id=reply.json["id"], input="ho")
            third = (await client.step())[-1]["response"]
        assert third["output"][0]["content"][0]["text"] == "You said ho."


async def test_what_cannot_be_gone_on_from_is_not_found_byte_for_byte() -> None:  # P46, P81
    store = MemoryStore()
    first, answer = await chained(store)
    async with open_served(CHAIN, store=store, lifecycle="chain") as server:
        unstored = (await server.http().create(store=False, background=False)).json["id"]
        for key, response_id in [("other", first), (None, "resp_x"), (None, unstored)]:
            reply = await server.http(key).create(previous_response_id=response_id, input=[answer])
            assert (reply.status, reply.error) == (
                400,
                {
                    "type": "invalid_request_error",
                    "code": "previous_response_not_found",
                    "message": f"Previous response with id '{response_id}' not found.",
                    "param": "previous_response_id",
                },
            )


async def test_a_chain_with_a_gap_cannot_be_gone_on_from() -> None:  # P81
    store = MemoryStore()
    first, answer = await chained(store)
    async with open_served(CHAIN, store=store, lifecycle="chain") as server:
        second = (await server.http().create(previous_response_id=first, input=[answer])).json["id"]
        assert (await server.http().delete(f"/v1/responses/{first}")).status == 200
        reply = await server.http().create(previous_response_id=second)
        assert reply.error["code"] == "previous_response_not_found"
        assert (await server.http().get(f"/v1/responses/{second}")).json["status"] == "completed"


async def test_what_goes_on_from_an_unstored_response_is_not_stored() -> None:  # P80
    store = MemoryStore()
    async with open_served(CHAIN, store=store, lifecycle="chain") as server, server.connect() as client:
        await client.create(store=False)
        first = (await client.step())[-1]["response"]
        await client.create(
            previous_response_id=first["id"], input=[ANSWER | {"call_id": first["output"][0]["call_id"]}]
        )
        second = (await client.step())[-1]["response"]
        assert (first["store"], second["store"]) == (False, False)
    assert await store.load(second["id"], "local") is None


async def test_a_run_of_the_append_lifecycle_is_gone_on_from_while_it_is_in_memory_and_after() -> None:  # P81
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, keys, _ = await paused_run(client, resumable=True)
        await client.answer(*((key, "x") for key in keys))
        await client.step()
        reply = await server.http().create(previous_response_id=response_id, tools=[FUNCTION])
        assert reply.json["status"] == "completed"
    async with open_served(store=store) as server:
        again = await server.http().create(previous_response_id=response_id, tools=[FUNCTION])
        assert again.json["usage"]["input_tokens"] == reply.json["usage"]["input_tokens"]


@pytest.mark.parametrize("fields", [{}, {"resumable": True}])
async def test_a_completed_run_is_continued_by_append_from_the_store(fields: dict[str, Any]) -> None:  # P22, P81
    store, inputs = MemoryStore(), []
    async with open_served(CHAIN, store=store) as server:
        async with server.connect() as client:
            response_id, (key,), _ = await paused_run(client, **fields)
            await client.answer((key, "x"))
            await client.step()
        for _ in range(2):  # the first time with what memory has of it, if it has
            async with server.connect() as client:
                await resume(client, response_id, -1)
                inputs.append(await continued(client, response_id))
    for _ in range(2):
        async with open_served(CHAIN, store=store) as server, server.connect() as client:
            await resume(client, response_id, -1)
            inputs.append(await continued(client, response_id))
    assert len(set(inputs)) == 1


async def continued(client: Client, response_id: str) -> int:
    """Go on from the completed run that this client reads; the input tokens of the new one."""
    await client.until("response.completed")
    await client.send("response.append", input="more")
    accepted, *frames = await client.step()
    assert accepted["type"] == "response.append.accepted", accepted
    ended = frames[-1]["response"]
    assert (accepted["response_id"], ended["previous_response_id"]) == (ended["id"], response_id)
    assert ended["timing"]["step"]["items_new"] == 1
    used: int = ended["usage"]["input_tokens"]
    return used


async def test_a_completed_run_that_lacks_what_was_before_it_cannot_be_continued() -> None:  # P15, P81
    store = MemoryStore()
    first, answer = await chained(store)
    async with open_served(CHAIN, store=store, lifecycle="chain") as server:
        second = (await server.http().create(previous_response_id=first, input=[answer])).json["id"]
    assert await store.delete(first, "local")
    async with open_served(CHAIN, store=store) as server, server.connect() as client:
        await resume(client, second, -1)
        await client.until("response.completed")
        await client.send("response.append", input="more")
        error = (await client.receive())["error"]
    assert (error["code"], error["param"]) == ("response_not_found", "response_id")


async def test_what_was_only_prepared_is_gone_on_from() -> None:  # P81
    store = MemoryStore()
    async with open_served(CHAIN, store=store, lifecycle="chain") as server, server.connect() as client:
        await client.create(input="go", generate=False)
        first = (await client.step())[-1]["response"]["id"]
    async with open_served(CHAIN, store=store, lifecycle="chain") as server, server.connect() as client:
        await client.create(previous_response_id=first, input=[])
        second = (await client.step())[-1]["response"]
        assert second["output"][0]["type"] == "function_call"


# --- taken up ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"resumable": True}])
async def test_a_paused_run_goes_on_in_another_server(fields: dict[str, Any]) -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, (one, two), before = await paused_run(client, **fields)
        await client.answer((one, "a"))
        await client.receive()
        killed = as_of_now(store)
    async with open_served(store=killed) as server, server.connect() as client:
        accepted = await resume(client, response_id, before[-1]["sequence_number"])
        assert accepted.pop("revival").startswith("rev_")
        assert accepted == {
            "type": "response.resume.accepted",
            "response_id": response_id,
            "starting_after": before[-1]["sequence_number"],
            "status": "paused",
            "last_sequence_number": before[-1]["sequence_number"],
            "still_pending": [one, two],  # the answer was not there when the step ended
        }
        await client.answer((one, "a"), (two, "b"))
        after = await client.step()
        assert after[0]["type"] == "response.append.accepted"
        assert numbers(before + after) == list(range(len(before + after) - 1))
        ended = after[-1]["response"]
        assert ended["output"][-1]["content"][0]["text"] == "Done with b."
        async with server.http().stream("GET", f"/v1/responses/{response_id}?stream=true") as stream:
            assert await stream.rest() == before + after[1:]
    async with open_served(store=killed) as server:
        assert (await server.http().get(f"/v1/responses/{response_id}")).json == ended


async def test_a_paused_run_of_the_inject_lifecycle_goes_on_in_another_server() -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store, lifecycle="inject") as server, server.connect() as client:
        await client.create()
        frames = [await client.receive()]
        while sum(frame["type"] == "response.output_item.done" for frame in frames) < 3:
            frames.append(await client.receive())
        await wait_all_tasks_blocked()
        killed, response_id = as_of_now(store), frames[0]["response"]["id"]
    done = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    keys = [item["call_id"] for item in done if item["type"] == "function_call"]
    async with open_served(store=killed, lifecycle="inject") as server, server.connect() as client:
        accepted = await resume(client, response_id, numbers(frames)[-1])
        assert (accepted["status"], accepted["still_pending"]) == ("paused", keys)
        await client.send("response.inject", response_id=response_id, input=[ANSWER | {"call_id": k} for k in keys])
        after = await client.step()
        assert after[0]["type"] == "response.inject.created"
        assert numbers(frames + after) == list(range(len(frames + after)))
        assert after[-1]["response"]["output"][-1]["content"][0]["text"] == "Done with snow."


async def test_a_step_that_died_halfway_is_replaced(autojump_clock: MockClock) -> None:  # P83
    store = MemoryStore()
    async with open_served(STALLED, store=store) as server, server.connect() as client:
        response_id, (key,), before = await paused_run(client)
        await client.answer((key, "a"))
        lost = await client.until("response.output_text.delta")
        killed = as_of_now(store)
    last, seen = before[-1]["sequence_number"], lost[-1]["sequence_number"]
    assert seen > last
    async with open_served(STALLED, store=killed) as server, server.connect() as client:
        accepted = await resume(client, response_id, seen)
        assert (accepted["starting_after"], accepted["last_sequence_number"]) == (last, last)
        assert accepted["still_pending"] == [key]
        await client.answer((key, "a"))
        after = await client.until("response.output_text.delta")
        assert numbers(before + after) == list(range(len(before + after) - 1))
        async with server.connect() as other, server.connect() as another:
            # All that it has of the run now is of this life, so it gets what it misses of that.
            again = await resume(other, response_id, seen - 1, revival=accepted["revival"])
            assert (again["starting_after"], again["revival"]) == (seen - 1, accepted["revival"])
            # One that does not say so may have its events from the former life.
            assert (await resume(another, response_id, seen - 1))["starting_after"] == last


async def test_a_run_that_has_all_its_answers_goes_on_when_it_is_resumed(autojump_clock: MockClock) -> None:  # P82
    store = MemoryStore()
    async with open_served(EARLY, store=store) as server, server.connect() as client:
        await client.create()
        before = await client.until("response.output_item.done")
        await client.answer((before[-1]["item"]["call_id"], "a"))
        before += await client.until("response.output_item.done")
        lost = await client.until("response.output_text.delta")
        while lost[-1]["delta"] != "x":
            lost += await client.until("response.output_text.delta")
        killed, response_id = as_of_now(store), before[0]["response"]["id"]
    async with open_served(EARLY, store=killed) as server, server.connect() as client:
        accepted = await resume(client, response_id, lost[-1]["sequence_number"])
        assert (accepted["status"], accepted["still_pending"]) == ("in_progress", [])
        after = await client.step()
        assert after[-1]["response"]["output"][-1]["content"][0]["text"] == "x y"
        first = accepted["starting_after"] + 1
        assert numbers(after) == list(range(first, first + len(after)))


async def test_a_run_whose_first_step_never_ended_has_failed(autojump_clock: MockClock) -> None:  # P84
    store = MemoryStore()
    async with open_served(SLOW, store=store) as server, server.connect() as client:
        await client.create(resumable=True)
        frames = await client.until("response.output_text.delta")
        killed, response_id = as_of_now(store), frames[0]["response"]["id"]
    async with open_served(store=killed) as server:
        reply = (await server.http().get(f"/v1/responses/{response_id}")).json
        assert (reply["status"], reply["error"]["code"]) == ("failed", "server_error")
        for _ in range(2):
            async with server.connect() as client:
                accepted = await resume(client, response_id, frames[-1]["sequence_number"])
                assert (accepted["status"], accepted["starting_after"]) == ("failed", 1)
                assert (await client.receive())["response"] == reply
        refused = await server.http().create(previous_response_id=response_id)
        assert refused.error["code"] == "previous_response_not_found"


async def test_the_times_of_a_run_begin_anew_when_it_is_taken_up(autojump_clock: MockClock) -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store, pause_ttl_s=50) as server, server.connect() as client:
        response_id, _, _ = await paused_run(client)
        await trio.sleep(40)
        killed = as_of_now(store)
    async with open_served(store=killed, pause_ttl_s=50, lease_s=30) as server:
        async with server.connect() as client:
            await resume(client, response_id, -1)
            await trio.sleep(40)
            assert (await server.http().get(f"/v1/responses/{response_id}")).json["status"] == "in_progress"
        await trio.sleep(9)  # less than the lease, which begins when the reader leaves
        assert (await server.http().get(f"/v1/responses/{response_id}")).json["status"] == "in_progress"
        await trio.sleep(2)
        reply = (await server.http().get(f"/v1/responses/{response_id}")).json
        assert reply["incomplete_details"] == {"reason": "append_timeout"}


async def test_a_run_that_is_taken_up_needs_a_reader_in_time(autojump_clock: MockClock) -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, _, _ = await paused_run(client)
        killed = as_of_now(store)
    async with open_served(store=killed, lease_s=30) as server:
        async with server.connect() as client:
            await resume(client, response_id, -1)
        await trio.sleep(31)
        reply = (await server.http().get(f"/v1/responses/{response_id}")).json
        assert reply["incomplete_details"] == {"reason": "connection_lost"}


async def test_several_who_resume_a_run_at_once_share_it() -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, (one, two), _ = await paused_run(client)
        killed = as_of_now(store)
    async with open_served(store=killed) as server, server.connect() as first, server.connect() as second:
        for client in (first, second):
            await client.send("response.resume", response_id=response_id)
        revivals = {(await client.receive())["revival"] for client in (first, second)}
        assert len(revivals) == 1
        for client in (first, second):
            await client.step()
        await first.answer((one, "a"))
        await second.answer((two, "b"))
        assert (await first.step())[-1] == (await second.step())[-1]


async def test_a_run_that_ended_without_its_server_stays_ended() -> None:
    store = MemoryStore()
    async with open_served(store=store) as server:
        async with server.connect() as client:
            response_id, _, _ = await paused_run(client)
        await wait_all_tasks_blocked()
        reply = (await server.http().get(f"/v1/responses/{response_id}")).json
        assert reply["incomplete_details"] == {"reason": "connection_lost"}  # P41
        async with server.connect() as client:
            accepted = await resume(client, response_id, -1)
            assert accepted["status"] == "incomplete"
            assert (await client.until("response.incomplete"))[-1]["response"] == reply
            await client.send("response.append", input="more")
            assert (await client.receive())["error"]["code"] == "response_not_found"


async def test_a_server_that_stops_leaves_a_paused_run_to_the_next_one(autojump_clock: MockClock) -> None:  # P38, P82
    store = MemoryStore()
    async with open_served(STALLED, store=store) as server, server.connect() as one, server.connect() as other:
        response_id, (key,), before = await paused_run(one)
        stored_id, (other_key,), _ = await paused_run(other)
        await other.answer((other_key, "a"))
        await other.until("response.output_text.delta")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.app.drain)
            assert (await other.step())[-1]["type"] == "response.completed"  # it was sampled to its end
    async with open_served(STALLED, store=store) as server, server.connect() as client:
        accepted = await resume(client, response_id, before[-1]["sequence_number"])
        assert (accepted["status"], accepted["still_pending"]) == ("paused", [key])
        await client.answer((key, "b"))
        assert (await client.step())[-1]["type"] == "response.completed"
        assert (await server.http().get(f"/v1/responses/{stored_id}")).json["status"] == "completed"


async def test_a_step_that_is_cut_at_the_servers_end_has_ended_the_run(autojump_clock: MockClock) -> None:  # P38
    store = MemoryStore()
    scenario = STALLED.replace("stall: 2", "stall: 200")
    async with open_served(scenario, store=store, drain_s=1) as server, server.connect() as client:
        response_id, (key,), _ = await paused_run(client)
        await client.answer((key, "a"))
        await client.until("response.output_text.delta")
        await server.app.drain()
        told = (await client.step())[-1]["response"]
        assert told["incomplete_details"] == {"reason": "server_shutdown"}
    async with open_served(store=store) as server:
        assert (await server.http().get(f"/v1/responses/{response_id}")).json == told


async def test_a_run_is_not_taken_up_by_a_server_that_stops_or_has_too_many() -> None:
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, _, _ = await paused_run(client)
        killed = as_of_now(store)
    async with open_served(store=killed, max_runs_per_principal=1) as server, server.connect() as client:
        async with server.connect() as other:
            await paused_run(other)
            assert (await resume(client, response_id, -1))["error"]["code"] == "rate_limit_exceeded"
        await server.app.responses.drain()
        assert (await resume(client, response_id, -1))["error"]["code"] == "server_is_overloaded"


async def test_a_run_that_has_compacted_its_context_goes_on_with_what_is_left() -> None:  # P82
    compacts = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    store = MemoryStore()
    async with open_served(COMPACTING, store=store) as server, server.connect() as client:
        await client.create(include=["response.tokens"], **compacts)
        await client.answer(((await client.step())[-1]["response"]["pending"][0]["answer_key"], "word " * 1000))
        before = await client.step()
        (call,) = before[-1]["response"]["pending"]
        killed, response_id = as_of_now(store), before[-1]["response"]["id"]
        await client.answer((call["answer_key"], "a"))
        unbroken = (await client.step())[-1]["response"]
    async with open_served(COMPACTING, store=killed) as server, server.connect() as client:
        await resume(client, response_id, before[-1]["sequence_number"])
        await client.answer((call["answer_key"], "a"))
        ended = (await client.step())[-1]["response"]
        kinds = ["function_call", "compaction", "function_call", "message"]
        assert [item["type"] for item in ended["output"]] == kinds
        assert ended["output"][:-1] == unbroken["output"][:-1]
        assert ended["usage"]["input_tokens"] == unbroken["usage"]["input_tokens"] < 500
    for instructions in ("Be brief.", None):
        async with open_served(COMPACTING, store=as_of_now(killed), lifecycle="chain") as server:
            more = {"previous_response_id": response_id, "tools": [FUNCTION], "instructions": instructions}
            response = (await server.http().create(**more)).json
            assert response["usage"]["input_tokens"] < 500


async def test_a_run_that_lacks_what_was_before_it_is_not_taken_up(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with open_served(CHAIN, store=store) as server, server.connect() as client:
        await client.create(keep_open=True)
        await client.answer(((await client.step())[-1]["response"]["pending"][0]["answer_key"], "a"))
        await client.step()
        await client.send("response.cancel")
        first = (await client.step())[-1]["response"]["id"]
        await client.create(previous_response_id=first, input="ho", keep_open=True)
        second = (await client.step())[-1]["response"]["id"]
        killed = as_of_now(store)
    assert await killed.delete(first, "local")
    async with open_served(store=killed) as server, server.connect() as client:
        assert (await resume(client, second, -1))["error"]["code"] == "response_not_found"
    assert "cannot be taken up" in caplog.text


# --- waited for --------------------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """A store whose disk is slow."""

    async def wait_durable(self) -> None:
        await trio.sleep(3)


class FailingStore(MemoryStore):
    """A store whose disk is gone."""

    async def wait_durable(self) -> None:
        raise ServerError("The store failed.")


async def test_terminal_events_wait_until_they_are_on_disk(autojump_clock: MockClock) -> None:  # P85
    async with open_served(store=SlowStore(), store_wait=True) as server, server.connect() as client:
        response_id, keys, _ = await paused_run(client)
        assert trio.current_time() == pytest.approx(3)
        await client.answer(*((key, "a") for key in keys))
        await client.until("response.output_text.delta")
        assert trio.current_time() == pytest.approx(3)
        await wait_all_tasks_blocked()
        assert (await server.http().get(f"/v1/responses/{response_id}")).json["status"] == "completed"
        await client.create()  # waits its turn, which begins with the terminal of the run before
        frames = await client.step()
        assert trio.current_time() == pytest.approx(6)
        assert (frames[-1]["type"], frames[-1]["response"]["id"]) == ("response.completed", response_id)
        await client.step()
        assert trio.current_time() == pytest.approx(9)
        await client.send("response.cancel")
        assert (await client.step())[-1]["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert trio.current_time() == pytest.approx(12)


async def test_an_answer_by_http_waits_until_it_is_on_disk(autojump_clock: MockClock) -> None:  # P85
    async with open_served(HELLO, store=SlowStore(), store_wait=True) as server:
        assert (await server.http().create()).json["status"] == "completed"
        assert trio.current_time() == pytest.approx(3)
        assert (await server.http().events())[-1]["type"] == "response.completed"
        assert trio.current_time() == pytest.approx(6)
        assert (await server.http().create(store=False)).json["status"] == "completed"
        assert trio.current_time() == pytest.approx(6)


async def test_a_server_stops_when_what_it_has_to_tell_is_on_disk(autojump_clock: MockClock) -> None:  # P85
    async with open_served(HELLO, store=SlowStore(), store_wait=True) as server, server.connect() as client:
        await client.create()
        await client.until("response.output_text.done")
        await server.app.drain()
        assert trio.current_time() == pytest.approx(3)
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_disk_that_fails_holds_nothing_up() -> None:
    async with open_served(HELLO, store=FailingStore(), store_wait=True) as server, server.connect() as client:
        await client.create()
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_resume_that_is_refused_leaves_the_run_as_it_was(autojump_clock: MockClock) -> None:  # P26
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, keys, _ = await paused_run(client)
        killed = as_of_now(store)
    async with open_served(store=killed, lease_s=30) as server:
        async with server.connect(query="?lifecycle=inject") as client:
            assert (await resume(client, response_id, -1))["error"]["code"] == "wrong_lifecycle"
        await trio.sleep(31)
        assert not server.app.responses.has_open
        async with server.connect() as client:
            assert (await resume(client, response_id, -1))["still_pending"] == keys
