"""server/contents.py: the input items of responses, page by page, and their tokens."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext
from tests.kept import open_kept
from tests.served import FUNCTION, TWO_CALLS, Served
from tests.tiny import save_format

HELLO = "model: test\nsteps:\n  - text: Hello there.\n"
THREE = [{"role": "user", "content": text} for text in ("one", "two", "three")]


async def begin(server: Served, **fields: Any) -> str:
    """The URL of a response that can be read."""
    reply = await server.http().create(background=True, **fields)
    assert reply.status == 200, reply.json
    return f"/v1/responses/{reply.json['id']}"


# --- input items -------------------------------------------------------------------------------------------------


async def test_input_items_are_listed_newest_first() -> None:  # P71
    async with open_kept(HELLO) as server:
        path = await begin(server, input=THREE)
        page = (await server.http().get(f"{path}/input_items")).json
    assert page["object"] == "list"
    assert [item["content"][0]["text"] for item in page["data"]] == ["three", "two", "one"]
    assert [page["first_id"], page["last_id"]] == [page["data"][0]["id"], page["data"][-1]["id"]]
    assert page["has_more"] is False


async def test_input_items_come_in_pages_whose_ids_stay() -> None:  # P71
    async with open_kept(HELLO) as server:
        path = f"{await begin(server, input=THREE)}/input_items?order=asc"
        whole = (await server.http().get(path)).json["data"]
        first = (await server.http().get(f"{path}&limit=2")).json
        rest = (await server.http().get(f"{path}&limit=2&after={first['last_id']}")).json
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert first["data"] + rest["data"] == whole


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("limit=0", 400, "limit"), ("limit=101", 400, "limit"), ("order=up", 400, "order"), ("after=msg_x", 404, "after")],
)
async def test_a_page_that_cannot_be_is_refused_by_name(query: str, status: int, param: str) -> None:
    async with open_kept(HELLO) as server:
        reply = await server.http().get(f"{await begin(server)}/input_items?{query}")
    assert (reply.status, reply.error["param"]) == (status, param)


async def test_the_input_of_a_chain_has_all_before_it_and_not_its_own_output() -> None:  # P71
    async with open_kept(HELLO, lifecycle="chain") as server, server.connect() as client:
        await client.create(input="one")
        before = (await client.step())[-1]["response"]
        await client.create(input="two", previous_response_id=before["id"], resumable=True)
        after = (await client.step())[-1]["response"]
        path = f"/v1/responses/{after['id']}/input_items?order=asc"
        items = (await server.http().get(path)).json["data"]
    assert [(item["role"], item["content"][0]["text"]) for item in items] == [
        ("user", "one"), ("assistant", "Hello there."), ("user", "two"),
    ]  # fmt: skip
    assert items[1] == before["output"][0]


async def test_input_that_is_kept_as_tokens_only_cannot_be_listed() -> None:
    async with open_kept() as server, server.connect() as client:
        await client.create(resumable=True, store=False)
        id_ = (await client.step())[0]["response"]["id"]
        reply = await server.http().get(f"/v1/responses/{id_}/input_items")
    assert (reply.status, reply.error["code"]) == (404, "items_not_kept")


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.fixture
def backend(tmp_path: Path) -> ScriptBackend:
    form = PromptFormat.load(save_format(tmp_path))
    return ScriptBackend(
        [parse_scenario(TWO_CALLS), parse_scenario(HELLO.replace("test", "hello"))], partial(PromptContext, form)
    )


async def test_tokens_are_those_of_the_token_events(backend: ScriptBackend) -> None:  # P72
    async with open_kept(backend=backend) as server:
        events = await server.http().events(background=True, include=["response.tokens"], tools=[FUNCTION])
        path = f"/v1/responses/{events[0]['response']['id']}/tokens"
        tokens = (await server.http().get(path)).json
    (told,) = (event for event in events if event["type"] == "response.tokens")
    assert tokens == {"object": "response.tokens", "response_id": told["response_id"], "data": told["spans"]}
    assert {span["sampled"] for span in tokens["data"]} == {True, False}
    usage = events[-1]["response"]["usage"]
    assert sum(len(span["ids"]) for span in tokens["data"]) == usage["total_tokens"]


async def test_tokens_end_where_another_response_goes_on(backend: ScriptBackend) -> None:  # P72
    async with open_kept(backend=backend, lifecycle="chain") as server, server.connect() as client:
        await client.create(model="hello", input="one", resumable=True)
        before = (await client.step())[-1]["response"]
        path = f"/v1/responses/{before['id']}/tokens"
        first = (await server.http().get(path)).json["data"]
        await client.create(model="hello", input="two", previous_response_id=before["id"], resumable=True)
        after = (await client.step())[-1]["response"]
        assert (await server.http().get(path)).json["data"] == first
        second = (await server.http().get(f"/v1/responses/{after['id']}/tokens")).json["data"]
    assert second[: len(first)] == first
    assert len(second) > len(first)


async def test_a_backend_that_sees_no_tokens_has_none() -> None:  # P72
    async with open_kept(HELLO) as server:
        tokens = (await server.http().get(f"{await begin(server)}/tokens")).json
    assert tokens["data"] == []


@pytest.mark.parametrize("what", ["input_items", "tokens"])
async def test_contents_of_others_responses_are_not_found(what: str) -> None:  # P4
    async with open_kept(HELLO) as server:
        path = f"{await begin(server)}/{what}"
        reply = await server.http("theirs").get(path)
    assert (reply.status, reply.error["code"]) == (404, "response_not_found")
