"""Responses over HTTP that go on from others: what is reused, what is kept, what is named, and what is forgotten."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.backends.scenario import parse_scenario
from engine.store_fake import MemoryStore
from tests.http_client import Http, Json
from tests.kept import open_kept
from tests.served import FUNCTION, Served, open_served
from tests.test_websocket import SlowBackend

ECHO = 'model: test\nsteps:\n  - text: "You said {last_user}, of {items}."\n'
CALLING = """
model: test
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - text: "It is {last_output}."
  - text: "Then you said {last_user}."
"""
SLOW = "model: test\npace: {tokens_per_second: 10}\nsteps:\n  - text: {words: 1000}\n"


def text_of(response: Json) -> str:
    (message,) = (item for item in response["output"] if item["type"] == "message")
    text: str = message["content"][0]["text"]
    return text


def output(call: Json, text: str = "blue") -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with open_kept(CALLING) as served:
        yield served


@pytest.fixture
async def http(server: Served) -> Http:
    return server.http()


async def three_turns(http: Http, **fields: Any) -> list[Json]:
    """A call, its output, another message."""
    first = (await http.create(tools=[FUNCTION], **fields)).json
    given: list[Any] = [output(first["output"][0])]
    second = (await http.create(input=given, tools=[FUNCTION], previous_response_id=first["id"], **fields)).json
    third = (await http.create(input="bye", tools=[FUNCTION], previous_response_id=second["id"], **fields)).json
    return [first, second, third]


# --- previous_response_id ----------------------------------------------------------------------------------------


async def test_a_response_goes_on_from_another_with_what_is_new_alone(http: Http) -> None:  # P76
    first, second, third = await three_turns(http)
    assert (text_of(second), text_of(third)) == ("It is blue.", "Then you said bye.")
    assert [one["previous_response_id"] for one in (first, second, third)] == [None, first["id"], second["id"]]
    for before, after in ((first, second), (second, third)):
        timing = after["timing"]["step"]
        assert timing["items_new"] == 1
        assert timing["tokens_reused"] == before["usage"]["total_tokens"]


async def test_a_stream_that_has_ended_can_be_gone_on_from_at_once() -> None:  # P76
    """lmstudio-ai/lmstudio-bug-tracker#1188: the next request did not find a response that was streamed."""
    async with open_kept(ECHO) as server:
        events = await server.http().events(input="one")
        reply = await server.http().create(input="two", previous_response_id=events[-1]["response"]["id"])
    assert text_of(reply.json) == "You said two, of 2."


async def test_the_history_is_everything_before(http: Http) -> None:  # P71, P76
    """ogx-ai/ogx#2074, #2299, MiXaiLL76/auto_ai_router#199: only one step was remembered."""
    first, second, third = await three_turns(http)
    page = (await http.get(f"/v1/responses/{third['id']}/input_items?order=asc")).json["data"]
    assert [item["type"] for item in page] == ["message", "function_call", "function_call_output", "message", "message"]
    assert [page[1], page[3]] == [first["output"][0], second["output"][0]]


async def test_chains_go_on_after_a_restart() -> None:  # P76
    store = MemoryStore()
    async with open_served(ECHO, store=store) as server:
        first = (await server.http().create(input="one")).json
    async with open_served(ECHO, store=store) as server:
        second = (await server.http().create(input="two", previous_response_id=first["id"])).json
        assert text_of(second) == "You said two, of 2."
        items = (await server.http().get(f"/v1/responses/{second['id']}/input_items")).json["data"]
    assert len(items) == 3


async def test_two_may_go_on_from_the_same_response(autojump_clock: MockClock) -> None:  # P76
    async with open_kept(backend=SlowBackend([parse_scenario(CALLING)])) as server:
        await go_on_twice_at_once(server.http())


async def go_on_twice_at_once(http: Http) -> None:
    first = (await http.create(tools=[FUNCTION])).json
    fields: Json = {"input": [output(first["output"][0])], "tools": [FUNCTION], "previous_response_id": first["id"]}
    replies: list[Json] = []

    async def go_on() -> None:
        replies.append((await http.create(**fields)).json)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        nursery.start_soon(go_on)
    await go_on()
    assert [text_of(reply) for reply in replies] == ["It is blue."] * 3
    assert len({reply["id"] for reply in replies}) == 3
    # Who was quicker took the tokens along; what was left to the other was the items.
    assert sorted(reply["timing"]["step"]["items_new"] for reply in replies[:2]) == [1, 3]


async def test_other_settings_are_obeyed_and_nothing_is_inherited(http: Http) -> None:  # P76
    """sgl-project/sglang#23662: instructions took the place of what the assistant had said."""
    first = (await http.create(tools=[FUNCTION], instructions="Be brief.", metadata={"a": "b"})).json
    given = [output(first["output"][0])]
    second = (await http.create(input=given, previous_response_id=first["id"])).json
    assert (second["instructions"], second["tools"], second["metadata"]) == (None, [], {})
    assert second["timing"]["step"]["items_new"] == 3
    assert text_of(second) == "It is blue."


@pytest.mark.parametrize("by_socket", [False, True])
async def test_what_is_not_stored_lives_only_where_it_was_made(by_socket: bool) -> None:  # P76
    """Soju06/codex-lb#395: a response with store: false was to be found elsewhere."""
    async with open_kept(ECHO, lifecycle="chain") as server, server.connect() as client:
        if by_socket:
            await client.create(input="one", store=False)
            first = (await client.step())[-1]["response"]
        else:
            first = (await server.http().create(input="one", store=False)).json
        reply = await server.http().create(input="two", previous_response_id=first["id"])
    assert (reply.status, reply.error["code"]) == (400, "previous_response_not_found")
    assert reply.error["message"] == f"Previous response with id '{first['id']}' not found."
    assert reply.error["param"] == "previous_response_id"


async def test_sockets_and_requests_go_on_from_each_other() -> None:  # P76
    async with open_kept(ECHO, lifecycle="chain") as server, server.connect() as client:
        await client.create(input="one")
        first = (await client.step())[-1]["response"]
        second = (await server.http().create(input="two", previous_response_id=first["id"])).json
        await client.create(input="three", previous_response_id=second["id"])
        third = (await client.step())[-1]["response"]
        assert text_of(third) == "You said three, of 5."
        # What was the lane's own is still its own.
        await client.create(input="four", previous_response_id=third["id"])
        assert text_of((await client.step())[-1]["response"]) == "You said four, of 6."


@pytest.mark.parametrize("key", ["theirs", None])
async def test_nobody_goes_on_from_others_responses(server: Served, key: str | None) -> None:  # P4
    first = (await server.http("mine").create()).json
    reply = await server.http(key).create(previous_response_id=first["id"])
    assert reply.error["code"] == "previous_response_not_found"


async def test_a_response_that_has_not_ended_well_cannot_be_gone_on_from(autojump_clock: MockClock) -> None:
    async with open_kept(SLOW) as server:
        http = server.http()
        running = (await http.create(background=True)).json
        for _ in range(2):
            reply = await http.create(previous_response_id=running["id"])
            assert reply.error["code"] == "previous_response_not_found"
            await http.post(f"/v1/responses/{running['id']}/cancel")


async def test_input_tokens_and_compaction_go_on_from_a_response_too(http: Http) -> None:
    _, _, third = await three_turns(http)
    fields: Json = {"input": "so", "tools": [FUNCTION], "previous_response_id": third["id"]}
    counted = (await http.post("/v1/responses/input_tokens", **fields)).json["input_tokens"]
    compacted = await http.post("/v1/responses/compact", model="test", **fields)
    assert compacted.json["object"] == "response.compaction"
    fourth = (await http.create(**fields)).json  # neither has taken anything away
    assert counted == fourth["usage"]["input_tokens"]
    assert fourth["timing"]["step"]["items_new"] == 1


# --- what is kept ready ------------------------------------------------------------------------------------------


async def test_ended_responses_are_kept_ready_for_a_while_and_only_the_newest(autojump_clock: MockClock) -> None:
    async with open_kept(ECHO, ended_ttl_s=50, max_kept_runs=2) as server:
        http, lives = server.http(), server.app.responses.runs.lives
        made = [(await http.create()).json["id"] for _ in range(4)]
        await wait_all_tasks_blocked()
        assert list(lives) == made[2:]
        await trio.sleep(51)
        assert not lives
        for number, id_ in enumerate(made):
            reply = await http.create(input=f"{number}", previous_response_id=id_)
            assert text_of(reply.json) == f"You said {number}, of 2."


async def test_what_nobody_can_go_on_from_is_not_kept() -> None:
    async with open_kept(ECHO) as server:
        lives = server.app.responses.runs.lives
        await server.http().create(store=False)
        await wait_all_tasks_blocked()
        assert not lives
        first = (await server.http().create()).json
        second = (await server.http().create(previous_response_id=first["id"])).json
        await wait_all_tasks_blocked()
        assert list(lives) == [second["id"]]  # the first one's sequence has gone on


# --- forgetting --------------------------------------------------------------------------------------------------


async def test_a_response_that_is_deleted_is_gone(http: Http) -> None:  # P77
    first, second, third = await three_turns(http)
    path = f"/v1/responses/{second['id']}"
    reply = await http.delete(path)
    assert (reply.status, reply.json) == (200, {"id": second["id"], "object": "response", "deleted": True})
    for url in (path, f"{path}?stream=true", f"{path}/input_items", f"{path}/tokens"):
        assert (await http.get(url)).error["message"] == f"Response with id '{second['id']}' not found."
    assert (await http.delete(path)).status == 404
    assert (await http.create(previous_response_id=second["id"])).error["code"] == "previous_response_not_found"
    assert (await http.get(f"/v1/responses/{third['id']}")).json == third
    assert (await http.get(f"/v1/responses/{first['id']}")).json == first


async def test_a_response_in_memory_is_forgotten_there_too(server: Served) -> None:  # P77
    http = server.http()
    first = (await http.create(tools=[FUNCTION])).json
    await http.delete(f"/v1/responses/{first['id']}")
    await wait_all_tasks_blocked()
    assert not server.app.responses.runs.lives
    reply = await http.create(input=[output(first["output"][0])], previous_response_id=first["id"])
    assert reply.error["code"] == "previous_response_not_found"


async def test_deleting_a_response_that_is_sampled_ends_it(autojump_clock: MockClock) -> None:  # P77
    store = MemoryStore()
    async with open_served(SLOW, store=store) as server:
        http = server.http()
        async with http.stream("POST", "/v1/responses", input="go", stream=True) as stream:
            (created,) = await stream.until("response.created")
            path = f"/v1/responses/{created['response']['id']}"
            assert (await http.delete(path)).status == 200
            assert (await stream.rest())[-1]["type"] == "response.incomplete"
        assert (await http.get(path)).status == 404
        assert await store.load(created["response"]["id"], "local") is None


async def test_a_lane_does_not_go_on_from_what_was_deleted() -> None:  # P77
    async with open_kept(ECHO, lifecycle="chain") as server, server.connect() as client:
        await client.create(input="one")
        first = (await client.step())[-1]["response"]
        assert (await server.http().delete(f"/v1/responses/{first['id']}")).status == 200
        await client.create(input="two", previous_response_id=first["id"])
        assert (await client.receive())["error"]["code"] == "previous_response_not_found"


async def test_nothing_goes_on_from_a_chain_with_a_gap(http: Http) -> None:  # P81
    first, second, third = await three_turns(http)
    await http.delete(f"/v1/responses/{first['id']}")
    for one in (second, third):
        reply = await http.create(input="so", tools=[FUNCTION], previous_response_id=one["id"])
        assert reply.error["code"] == "previous_response_not_found"


async def test_nobody_deletes_others_responses(server: Served) -> None:  # P4
    first = (await server.http("mine").create()).json
    assert (await server.http("theirs").delete(f"/v1/responses/{first['id']}")).status == 404
    assert (await server.http("mine").get(f"/v1/responses/{first['id']}")).status == 200


# --- items by their ids ------------------------------------------------------------------------------------------


async def test_an_item_can_be_named_instead_of_sent(server: Served) -> None:  # P78
    http = server.http()
    (call,) = (await http.create(tools=[FUNCTION])).json["output"]
    given = [{"role": "user", "content": "go"}, {"type": "item_reference", "id": call["id"]}, output(call)]
    answer = (await http.create(input=given, tools=[FUNCTION])).json
    assert text_of(answer) == "It is blue."
    items = (await http.get(f"/v1/responses/{answer['id']}/input_items?order=asc")).json["data"]
    assert items[1] == call


async def test_items_are_found_after_a_restart() -> None:  # P78
    store = MemoryStore()
    async with open_served(CALLING, store=store) as server:
        (call,) = (await server.http().create(tools=[FUNCTION])).json["output"]
    async with open_served(CALLING, store=store) as server:
        given = [{"role": "user", "content": "go"}, {"id": call["id"]}, output(call)]
        assert text_of((await server.http().create(input=given, tools=[FUNCTION])).json) == "It is blue."


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_an_item_that_is_not_there_is_named(server: Served, path: str) -> None:  # P78
    (call,) = (await server.http("mine").create(tools=[FUNCTION])).json["output"]
    for key, id_ in (("theirs", call["id"]), ("mine", "msg_x"), ("mine", call["id"][:-1] + "x")):
        given = [{"role": "user", "content": "go"}, {"type": "item_reference", "id": id_}]
        reply = await server.http(key).post(path, input=given)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "item_not_found", "input[1].id")
