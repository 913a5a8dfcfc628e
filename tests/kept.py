"""Servers that die and come back, for tests: what one of them has stored, another one finds."""

import copy
from contextlib import AbstractAsyncContextManager
from typing import Any

from engine.store_fake import MemoryStore
from tests.served import TWO_CALLS, Client, Served, open_served, pending


def open_kept(scenario: str = TWO_CALLS, **fields: Any) -> AbstractAsyncContextManager[Served]:
    """A server with a store of its own, as servers are unless they are told otherwise."""
    return open_served(scenario, store=MemoryStore(), **fields)


def as_of_now(store: MemoryStore) -> MemoryStore:
    """What a server would find that comes after one that is killed now."""
    return copy.deepcopy(store)


async def paused_run(client: Client, **fields: Any) -> tuple[str, list[str], list[dict[str, Any]]]:
    """A run that has stopped for its calls: its id, their keys, and all of its frames."""
    await client.create(**fields)
    frames = await client.step()
    return frames[0]["response"]["id"], pending(frames), frames


async def resume(client: Client, response_id: str, starting_after: int, **fields: Any) -> dict[str, Any]:
    """The answer to a `response.resume`."""
    await client.send("response.resume", response_id=response_id, starting_after=starting_after, **fields)
    return await client.receive()


def numbers(frames: list[dict[str, Any]]) -> list[int]:
    """The numbers of those that are events of a run."""
    return [frame["sequence_number"] for frame in frames if "sequence_number" in frame]
