"""Runs that outlive their server: kept step by step, read and gone on from after that, taken up by the next one."""

import pytest
from trio.testing import wait_all_tasks_blocked

from engine.store_fake import MemoryStore
from tests.kept import resume
from tests.served import open_served

HELLO = "model: test\nsteps:\n  - text: Hello there.\n"
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
