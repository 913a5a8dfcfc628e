"""Runs that were taken up, as readers find them: reading takes nothing up, and no two lives are taken for one."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.store_fake import MemoryStore
from tests.kept import as_of_now, numbers, paused_run, resume
from tests.served import Client, Served, open_served

LIVES = """
model: test
steps:
  - calls: [{name: look, arguments: {n: 1}}]
  - [{text: one}, {stall: 2}, {text: " two"}, {calls: [{name: look, arguments: {n: 2}}]}]
  - [{text: x}, {stall: 2}, {text: " y"}]
"""
EARLY = """
model: test
steps:
  - [{calls: [{name: look, arguments: {n: 1}}]}, {stall: 2}, {text: Wait.}]
  - [{text: x}, {stall: 2}, {text: " y"}]
"""


@asynccontextmanager
async def served_and_connected(store: MemoryStore, scenario: str = LIVES) -> AsyncIterator[tuple[Served, Client]]:
    async with open_served(scenario, store=store) as server, server.connect() as client:
        yield server, client


async def go_on(client: Client, key: str) -> int:
    """Answer the call; the number of the step's first delta, which is as far as this life goes."""
    await client.answer((key, "a"))
    return numbers(await client.until("response.output_text.delta"))[-1]


# --- only read ---------------------------------------------------------------------------------------------------


async def test_a_run_is_read_without_taking_it_up(autojump_clock: MockClock) -> None:  # P34, P63, P82
    store = MemoryStore()
    async with served_and_connected(store) as (_, client):
        response_id, _, before = await paused_run(client)
        killed = as_of_now(store)
    path = f"/v1/responses/{response_id}"
    async with open_served(store=killed, pause_ttl_s=5, lease_s=5) as server:
        for _ in range(2):
            assert (await server.http().get(path)).json["status"] == "in_progress"
            async with server.http().stream("GET", f"{path}?stream=true") as stream:
                assert await stream.until("response.done") == before
                await trio.sleep(10)
            await trio.sleep(10)
        assert not server.app.responses.has_open
        async with server.connect() as client:
            assert (await resume(client, response_id, -1))["status"] == "paused"


async def test_who_only_reads_a_run_sees_it_go_on_once_it_is_taken_up() -> None:  # P82
    store = MemoryStore()
    async with open_served(store=store) as server, server.connect() as client:
        response_id, keys, before = await paused_run(client)
        killed = as_of_now(store)
    path = f"/v1/responses/{response_id}?stream=true"
    async with (
        open_served(store=killed) as server,
        server.http().stream("GET", path) as one,
        server.http().stream("GET", path) as other,
        server.connect() as client,
    ):
        assert await one.until("response.done") == before
        accepted = await resume(client, response_id, -1)
        assert [stream.headers["x-revival"] for stream in (one, other)] == [accepted["revival"]] * 2  # P86
        await client.step()
        await client.answer(*((key, "a") for key in keys))
        after = (await client.step())[1:]
        assert await one.rest() == after
        assert await other.rest() == before + after


async def test_a_server_that_stops_lets_go_of_those_who_only_read(autojump_clock: MockClock) -> None:  # P38
    store = MemoryStore()
    async with served_and_connected(store, EARLY) as (_, client):
        await client.create()
        going = await client.until("response.output_item.done")
        key = going[-1]["item"]["call_id"]
        await client.answer((key, "a"))
        await client.until("response.output_item.done")
        await client.until("response.output_text.delta")
        await wait_all_tasks_blocked()
        killed = as_of_now(store)
    async with open_served(LIVES, store=killed) as server, server.connect() as client:
        paused_id, _, _ = await paused_run(client)
        await wait_all_tasks_blocked()
        killed = as_of_now(killed)
    ids = [paused_id, going[0]["response"]["id"]]
    paths = [f"/v1/responses/{one}?stream=true" for one in ids]
    async with open_served(LIVES, store=killed) as server, AsyncExitStack() as readers:
        streams = [await readers.enter_async_context(server.http().stream("GET", path)) for path in paths]
        await server.app.responses.drain()
        streams += [await readers.enter_async_context(server.http().stream("GET", path)) for path in paths]
        for stream in streams:
            assert (await stream.rest())[-1]["response"]["incomplete_details"] == {"reason": "server_shutdown"}
    async with open_served(LIVES, store=killed) as server:
        for one, status in zip(ids, ("paused", "in_progress"), strict=True):
            async with server.connect() as client:
                assert (await resume(client, one, -1))["status"] == status


# --- several lives -----------------------------------------------------------------------------------------------


class Lived:
    """A run with three lives: each but the last went further than was stored of it."""

    async def live(self, store: MemoryStore) -> None:
        """Two of them. lasts: the last number stored of each. seen: how far it went. revivals: names of later lives."""
        async with served_and_connected(store) as (_, client):
            self.id, (key,), frames = await paused_run(client)
            self.lasts = [numbers(frames)[-1]]
            self.seen = [await go_on(client, key)]
            store = as_of_now(store)
        async with served_and_connected(store) as (_, client):
            self.revivals = [(await resume(client, self.id, self.lasts[0]))["revival"]]
            await client.answer((key, "b"))
            frames = await client.step()
            self.lasts.append(numbers(frames)[-1])
            self.seen.append(await go_on(client, frames[-1]["response"]["pending"][0]["answer_key"]))
            self.store = as_of_now(store)

    async def end(self, client: Client) -> None:
        """Its third life, to the end."""
        accepted = await resume(client, self.id, self.seen[1], revival=self.revivals[0])
        assert accepted["starting_after"] == self.lasts[1]
        self.revivals.append(accepted["revival"])
        await client.answer((accepted["still_pending"][0], "c"))
        await client.step()

    async def check(self, server: Served) -> None:
        """Every client gets what it misses of the run as it is, whatever life it last read."""
        first, second = self.revivals
        for known, had, due in (
            (None, self.seen[0], self.lasts[0]),
            (None, self.seen[1], self.lasts[0]),
            ("rev_other", self.lasts[1], self.lasts[0]),
            (first, self.seen[1], self.lasts[1]),
            (first, self.seen[0], self.seen[0]),
            (second, self.seen[1], self.seen[1]),
            (None, self.lasts[0], self.lasts[0]),
            (None, -1, -1),
        ):
            async with server.connect() as client:
                accepted = await resume(client, self.id, had, **({"revival": known} if known else {}))
                assert (accepted["starting_after"], accepted["revival"]) == (due, second)
            query = f"/v1/responses/{self.id}?stream=true{f'&revival={known}' if known else ''}&starting_after="
            if had != due:
                refused = await server.http().get(f"{query}{had}")
                assert (refused.status, refused.error["code"]) == (400, "events_replaced")
                assert f"starting_after={due}." in refused.error["message"]
            async with server.http().stream("GET", f"{query}{due}") as stream:
                assert stream.headers["x-revival"] == second
                assert numbers(await stream.rest())[0] == due + 1


async def test_events_of_several_lives_are_never_taken_for_one(autojump_clock: MockClock) -> None:  # P83, P86
    lived = Lived()
    await lived.live(MemoryStore())
    async with open_served(LIVES, store=lived.store) as server, server.connect() as client:
        await lived.end(client)
        await lived.check(server)
    async with open_served(LIVES, store=lived.store) as server:
        await lived.check(server)


async def test_events_of_a_run_with_one_life_are_read_on_from_anywhere() -> None:  # P86
    store = MemoryStore()
    async with served_and_connected(store, "model: test\nsteps:\n  - text: Hello there.\n") as (_, client):
        await client.create()
        frames = await client.step()
    async with open_served(store=store) as server:
        path = f"/v1/responses/{frames[0]['response']['id']}?stream=true&starting_after=3"
        async with server.http().stream("GET", path) as stream:
            assert await stream.rest() == frames[4:]
            assert "x-revival" not in stream.headers
