"""conversations.py and server/conversations.py: what clients do with conversations, and what responses do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.store_fake import MemoryStore
from tests.http_client import Http, Json
from tests.served import FUNCTION, Served, open_served

ECHO = 'model: test\nsteps:\n  - text: "You said {last_user}, of {items}."\n'
CALLING = """
model: test
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - text: "It is {last_output}."
"""
SLOW = "model: test\npace: {tokens_per_second: 10}\nsteps:\n  - text: {words: 1000}\n"


def said(text: str, role: str = "user") -> Json:
    return {"type": "message", "role": role, "content": text}


async def begin(http: Http, **fields: Any) -> str:
    """The id of a new conversation."""
    reply = await http.post("/v1/conversations", **fields)
    assert reply.status == 200, reply.json
    id_: str = reply.json["id"]
    return id_


async def texts(http: Http, conversation: str) -> list[str]:
    """What has been said in it, oldest first."""
    page = (await http.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")).json
    return [item["content"][0]["text"] if item["type"] == "message" else item["type"] for item in page["data"]]


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with open_served(ECHO, store=MemoryStore()) as served:
        yield served


@pytest.fixture
async def http(server: Served) -> Http:
    return server.http()


# --- conversations and their items -------------------------------------------------------------------------------


async def test_a_conversation_is_made_read_changed_and_forgotten(http: Http) -> None:  # P73
    made = (await http.post("/v1/conversations", metadata={"a": "b"}, items=[said("hi")])).json
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    assert isinstance(made["created_at"], int)
    path = f"/v1/conversations/{made['id']}"
    assert (await http.get(path)).json == made
    assert (await http.post(path, metadata={"c": "d"})).json == made | {"metadata": {"c": "d"}}
    assert (await http.get(path)).json["metadata"] == {"c": "d"}
    assert (await http.delete(path)).json == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for reply in (await http.get(path), await http.delete(path), await http.post(path, metadata={})):
        assert (reply.status, reply.error["code"]) == (404, "conversation_not_found")
        assert reply.error["message"] == f"Conversation with id '{made['id']}' not found."


async def test_a_conversation_may_begin_with_nothing(http: Http) -> None:
    made = (await http.ask("POST", "/v1/conversations")).json
    assert made["metadata"] == {}
    page = (await http.get(f"/v1/conversations/{made['id']}/items")).json
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_items_are_added_listed_read_and_deleted(http: Http) -> None:  # P73
    id_ = await begin(http, items=[said("one")])
    path = f"/v1/conversations/{id_}/items"
    added = (await http.post(path, items=[said("two"), said("three", "assistant")])).json
    assert [item["content"][0]["type"] for item in added["data"]] == ["input_text", "output_text"]
    assert await texts(http, id_) == ["one", "two", "three"]
    newest = (await http.get(f"{path}?limit=1")).json
    assert (newest["data"], newest["has_more"]) == ([added["data"][1]], True)
    behind = (await http.get(f"{path}?after={newest['last_id']}")).json
    assert [item["content"][0]["text"] for item in behind["data"]] == ["two", "one"]
    own = added["data"][0]
    assert (await http.get(f"{path}/{own['id']}")).json == own
    assert (await http.delete(f"{path}/{own['id']}")).json["id"] == id_
    assert await texts(http, id_) == ["one", "three"]
    for reply in (await http.get(f"{path}/{own['id']}"), await http.delete(f"{path}/{own['id']}")):
        assert (reply.status, reply.error["code"]) == (404, "item_not_found")


async def test_items_keep_the_ids_they_come_with(http: Http) -> None:
    id_ = await begin(http, items=[said("one") | {"id": "msg_mine"}, said("two")])
    first, second = (await http.get(f"/v1/conversations/{id_}/items?order=asc")).json["data"]
    assert first["id"] == "msg_mine"
    assert second["id"].startswith("msg_")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [said("x")] * 21}, "items"),
        ("", {"metadata": {"k": 1}}, "metadata[...]"),
        ("", {"items": [said("x"), {"type": "message", "role": "user"}]}, "items[1].content"),
        ("", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0]"),
        ("/{id}", {}, "metadata"),
        ("/{id}/items", {}, "items"),
        ("/{id}/items", {"items": []}, "items"),
        ("/{id}/items", {"items": [said("x")] * 21}, "items"),
    ],
)
async def test_a_body_that_is_wrong_is_refused_by_name(http: Http, path: str, body: Json, param: str) -> None:
    url = "/v1/conversations" + path.format(id=await begin(http))
    reply = await http.ask("POST", url, body)
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/items"), ("POST", "/items"), ("GET", "/items/msg_1"),
        ("DELETE", "/items/msg_1"),
    ],
)  # fmt: skip
async def test_conversations_of_others_are_not_found(server: Served, method: str, rest: str) -> None:  # P4
    id_ = await begin(server.http("mine"), items=[said("x") | {"id": "msg_1"}])
    body = {"metadata": {}, "items": [said("y")]} if method == "POST" else None
    reply = await server.http("theirs").ask(method, f"/v1/conversations/{id_}{rest}", body)
    assert (reply.status, reply.error["code"]) == (404, "conversation_not_found")
    assert await texts(server.http("mine"), id_) == ["x"]


async def test_a_server_without_a_store_has_no_conversations() -> None:
    async with open_served(ECHO) as server:
        assert (await server.http().post("/v1/conversations")).error["code"] == "unknown_url"
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            reply = await server.http().post(path, input="x", conversation="conv_1")
            assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


# --- responses in conversations ----------------------------------------------------------------------------------


async def test_a_response_is_given_the_conversation_and_adds_to_it(http: Http) -> None:  # P74
    id_ = await begin(http, items=[said("zero")])
    first = (await http.create(input="one", conversation=id_)).json
    assert first["conversation"] == {"id": id_}
    assert first["output"][0]["content"][0]["text"] == "You said one, of 2."
    second = (await http.create(input="two", conversation={"id": id_})).json
    assert second["output"][0]["content"][0]["text"] == "You said two, of 3."
    assert await texts(http, id_) == ["zero", "one", "You said one, of 2.", "two", "You said two, of 3."]
    page = (await http.get(f"/v1/conversations/{id_}/items")).json
    assert page["data"][0]["id"] == second["output"][0]["id"]


async def test_a_stream_and_a_run_in_the_background_add_before_their_end_is_told(http: Http) -> None:  # P74
    id_ = await begin(http)
    await http.events(input="one", conversation=id_)
    assert len(await texts(http, id_)) == 2
    events = await http.events(input="two", conversation=id_, background=True)
    assert events[-1]["type"] == "response.completed"
    assert len(await texts(http, id_)) == 4


async def test_a_chain_on_a_socket_may_work_on_a_conversation() -> None:  # P74
    async with open_served(ECHO, store=MemoryStore(), lifecycle="chain") as server, server.connect() as client:
        id_ = await begin(server.http(), items=[said("zero")])
        await client.create(input="one", conversation=id_)
        last = (await client.step())[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == "You said one, of 2."
        await client.create(input="two", conversation="conv_x")
        error = await client.receive()
        assert (error["status"], error["error"]["param"]) == (404, "conversation")
        assert len(await texts(server.http(), id_)) == 3


async def test_calls_are_answered_by_the_next_response() -> None:  # P74
    async with open_served(CALLING, store=MemoryStore()) as server:
        http = server.http()
        id_ = await begin(http)
        (call,) = (await http.create(conversation=id_, tools=[FUNCTION])).json["output"]
        reply = await http.create(conversation=id_, input="and?")
        assert reply.error["message"] == f"No tool output found for function call {call['call_id']}."
        stray = {"type": "function_call_output", "call_id": "call_x", "output": "x"}
        reply = await http.create(conversation=id_, input=[said("a"), stray])
        assert reply.error["param"] == "input[1].call_id"
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
        answer = (await http.create(conversation=id_, input=[output], tools=[FUNCTION])).json
        assert answer["output"][0]["content"][0]["text"] == "It is blue."
        assert await texts(http, id_) == ["go", "function_call", "function_call_output", "It is blue."]


async def test_a_call_that_was_cut_is_not_added(http: Http) -> None:
    scenario = "model: test\nsteps:\n  - calls: [{name: look, arguments: {words: a b c d e f g h i j k l}}]\n"
    async with open_served(scenario, store=MemoryStore()) as server:
        id_ = await begin(server.http())
        reply = await server.http().create(conversation=id_, tools=[FUNCTION], max_output_tokens=3)
        assert [item["status"] for item in reply.json["output"]] == ["incomplete"]
        assert await texts(server.http(), id_) == ["go"]


async def test_a_conversation_in_use_is_locked_until_the_response_is_over(autojump_clock: MockClock) -> None:  # P75
    async with open_served(SLOW, store=MemoryStore()) as server:
        http = server.http()
        id_ = await begin(http, items=[said("x") | {"id": "msg_x"}])
        async with http.stream("POST", "/v1/responses", input="one", conversation=id_, stream=True) as stream:
            await stream.until("response.output_text.delta")
            path = f"/v1/conversations/{id_}/items"
            for reply in (
                await http.create(input="two", conversation=id_),
                await http.post(path, items=[said("y")]),
                await http.delete(f"{path}/msg_x"),
            ):
                assert (reply.status, reply.error["code"]) == (400, "conversation_locked")
                assert reply.error["param"] == "conversation"
        await wait_all_tasks_blocked()
        assert await texts(http, id_) == ["x"]  # the response was cut short: it adds nothing
        assert (await http.create(input="two", conversation=id_)).json["status"] == "completed"


async def test_a_response_that_does_not_start_leaves_the_conversation_as_it_is(http: Http) -> None:  # P75
    id_ = await begin(http)
    for fields in ({"model": "other"}, {"input": [{"role": "user"}]}, {"temperature": 9}):
        assert (await http.create(**{"conversation": id_} | fields)).status in (400, 404)
    assert (await http.create(input=[], conversation=id_)).error["param"] == "input"
    assert await texts(http, id_) == []
    assert (await http.create(input="one", conversation=id_)).status == 200


async def test_a_conversation_may_be_forgotten_while_a_response_works_on_it(autojump_clock: MockClock) -> None:
    async with open_served(SLOW, store=MemoryStore()) as server, trio.open_nursery() as nursery:
        http = server.http()
        id_ = await begin(http)
        nursery.start_soon(lambda: http.create(input="one", conversation=id_))
        await trio.sleep(1)
        assert (await http.delete(f"/v1/conversations/{id_}")).status == 200
        await trio.sleep(200)
        assert (await http.get(f"/v1/conversations/{id_}")).status == 404


async def test_input_tokens_count_the_conversation(http: Http) -> None:
    id_ = await begin(http, items=[said("word " * 100)])
    alone = (await http.post("/v1/responses/input_tokens", input="hi")).json["input_tokens"]
    whole = (await http.post("/v1/responses/input_tokens", input="hi", conversation=id_)).json["input_tokens"]
    usage = (await http.create(input="hi", conversation=id_)).json["usage"]
    assert alone + 100 < whole == usage["input_tokens"]


async def test_a_response_in_a_conversation_cannot_be_steered() -> None:
    async with open_served(SLOW, store=MemoryStore(), lifecycle="chain") as server, server.connect() as client:
        id_ = await begin(server.http())
        await client.create(input="one", conversation=id_)
        created = await client.receive()
        await client.send("response.steer", previous_response_id=created["response"]["id"], input="no")
        failed = (await client.until("response.steer.failed"))[-1]
    assert failed["error"]["code"] == "steering_not_supported"


async def test_a_turn_renders_what_is_new_until_somebody_else_changes_the_conversation(http: Http) -> None:  # P74
    id_ = await begin(http, items=[said("zero")])

    async def new_items(text: str) -> int:
        answer = (await http.create(input=text, conversation=id_)).json
        assert answer["output"][0]["content"][0]["text"].startswith(f"You said {text}, ")
        num_new: int = answer["timing"]["run"]["items_new"]
        return num_new

    assert [await new_items(text) for text in ("one", "two", "three")] == [2, 1, 1]
    await http.post(f"/v1/conversations/{id_}/items", items=[said("between")])
    assert [await new_items(text) for text in ("four", "five")] == [9, 1]
    page = (await http.get(f"/v1/conversations/{id_}/items?order=desc&limit=1")).json
    await http.ask("DELETE", f"/v1/conversations/{id_}/items/{page['data'][0]['id']}")
    assert [await new_items(text) for text in ("six", "seven")] == [12, 1]


async def test_a_conversation_goes_on_when_its_newest_response_is_deleted(http: Http) -> None:
    id_ = await begin(http)
    first = (await http.create(input="one", conversation=id_)).json
    await http.ask("DELETE", f"/v1/responses/{first['id']}")
    second = (await http.create(input="two", conversation=id_)).json
    assert second["output"][0]["content"][0]["text"] == "You said two, of 3."


async def test_a_conversation_of_many_items_is_given_whole(server: Served) -> None:
    id_ = await begin(server.http())
    for number in range(3):
        path = f"/v1/conversations/{id_}/items"
        await server.http().post(path, items=[said(f"{number}.{index}") for index in range(20)])
    answer = (await server.http().create(input="last", conversation=id_)).json
    assert answer["output"][0]["content"][0]["text"] == "You said last, of 61."


@pytest.mark.parametrize("path", ["", "/items"])
@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([said("a") | {"id": "dup"}, said("b") | {"id": "dup"}], "items[1].id", "duplicate_item"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "items[0].call_id", "invalid_value"),
        ([said("a"), {"type": "compaction", "encrypted_content": "x"}], "items[1].encrypted_content", None),
    ],
)
async def test_items_that_no_response_could_begin_with_are_refused(  # P73
    http: Http, path: str, items: list[Json], param: str, code: str | None
) -> None:
    place = "/v1/conversations" + (f"/{await begin(http)}/items" if path else "")
    reply = await http.post(place, items=items)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert code is None or reply.json["error"]["code"] == code


async def test_an_id_that_is_there_already_is_refused(http: Http) -> None:  # P73
    conversation = await begin(http, items=[said("a") | {"id": "msg_a"}])
    reply = await http.post(f"/v1/conversations/{conversation}/items", items=[said("b") | {"id": "msg_a"}])
    assert (reply.status, reply.json["error"]["param"]) == (400, "items[0].id")


async def test_an_output_finds_its_call_in_what_is_there(http: Http) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    conversation = await begin(http, items=[call])
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    assert (await http.post(f"/v1/conversations/{conversation}/items", items=[output])).status == 200


async def test_a_page_after_an_item_that_is_not_there_is_not_found(http: Http) -> None:  # P73
    reply = await http.get(f"/v1/conversations/{await begin(http)}/items?after=nope")
    assert (reply.status, reply.json["error"]["code"]) == (404, "item_not_found")


async def test_what_is_not_to_be_stored_has_no_conversation(http: Http) -> None:  # P74, P80
    reply = await http.create(conversation=await begin(http), store=False)
    assert (reply.status, reply.json["error"]["param"]) == (400, "store")
