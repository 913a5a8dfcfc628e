"""What `GET /readyz` says when nothing can be kept, and that the server is ready by itself when it can again.

The disk is full for real: a limit on the size of this process's files. No mock clock: it would not wait for a thread.
"""

import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from engine.group_commit import GroupCommit
from engine.settings import Settings
from engine.sqlite_ledger import open_ledger
from engine.sqlite_store import open_store
from tests.http_client import Reply
from tests.served import Served, open_served

READY = (200, "")
HELLO = "model: test\nsteps: [{text: Hello.}]\n"


@asynccontextmanager
async def keeping(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    chosen = Settings(data_dir=folder, disk_retry_s=0.01, store_commit_ms=0, ledger_commit_ms=0, **settings)
    with trio.fail_after(30):
        async with (
            open_ledger(chosen) as ledger,
            open_store(chosen) as store,
            open_served(HELLO, store=store, ledger=ledger, lifecycle="chain") as server,
        ):
            yield server


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def readyz(server: Served) -> tuple[int, str]:
    reply: Reply = await server.http().get("/readyz")
    return reply.status, reply.error["message"] if reply.status != 200 else ""


async def until(server: Served, is_there: Callable[[tuple[int, str]], bool]) -> tuple[int, str]:
    """The first answer of this kind."""
    while not is_there(answer := await readyz(server)):
        await trio.lowlevel.checkpoint()
    return answer


async def run(server: Served) -> str:
    """How a stored run ends."""
    async with server.connect() as client:
        await client.create(input="go", tools=[])
        return (await client.step())[-1]["type"]


@pytest.mark.parametrize("kept", ["store", "ledger"])
async def test_a_full_disk_is_named_until_there_is_room(tmp_path: Path, kept: str) -> None:  # P3
    other = {"store": "ledger", "ledger": "store"}[kept]
    async with keeping(tmp_path, **{other: "none"}) as server:
        assert await run(server) == "response.completed"
        assert await readyz(server) == READY
        with full_disk():
            assert await run(server) == "response.completed"  # the run goes on; see P85
            status, message = await until(server, lambda answer: answer != READY)
            assert status == 503
            assert message.startswith(f"Not ready: the {kept} cannot write: ")
        await until(server, lambda answer: answer == READY)
        assert await run(server) == "response.completed"


@pytest.mark.parametrize("kept", ["store", "ledger"])
async def test_a_database_that_is_read_only_is_named_until_it_is_not(
    tmp_path: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # P3
    opened: list[sqlite3.Connection] = []
    init = GroupCommit.__init__

    def remember(self: Any, name: str, database: Any, *limits: Any) -> None:
        init(self, name, database, *limits)
        opened.append(database._db)

    monkeypatch.setattr(GroupCommit, "__init__", remember)
    other = {"store": "ledger", "ledger": "store"}[kept]
    async with keeping(tmp_path, **{other: "none"}) as server:
        opened[0].execute("PRAGMA query_only = ON")
        assert await run(server) == "response.completed"
        answer = await until(server, lambda answer: answer != READY)
        assert answer == (503, f"Not ready: the {kept} cannot write: attempt to write a readonly database")
        opened[0].execute("PRAGMA query_only = OFF")
        await until(server, lambda answer: answer == READY)
