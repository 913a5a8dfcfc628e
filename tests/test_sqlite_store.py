"""sqlite_store.py: what is put is seen at once and after a restart, and what happens when the disk fails.

No mock clock here: it would not wait for a thread.
"""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.clock import wall_clock
from engine.database import FILE_NAME, Database, open_database
from engine.errors import NotFound, ServerError
from engine.group_commit import open_group_commit
from engine.settings import Settings
from engine.sqlite_store import SqliteStore, open_store
from engine.store import Conversation, Store, StoredItem, StoreUnusable

NOW = int(wall_clock())
LONG_MS = 3_600_000


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[Store]:
    with trio.fail_after(20):
        async with open_store(Settings(data_dir=folder, **settings)) as store:
            assert store is not None
            yield store


@asynccontextmanager
async def started(database: Database) -> AsyncIterator[SqliteStore]:
    """A store on a database that a test has its hands on."""
    with trio.fail_after(20):
        async with open_group_commit("store", database, LONG_MS) as disk:
            yield SqliteStore(disk)


def put(store: Store, response_id: str, *steps: bytes, created_at: int = NOW) -> None:
    store.put_start(response_id, "me", None, created_at, b"start")
    for number, step in enumerate(steps):
        store.put_step(response_id, number, step)


async def steps(store: Store, response_id: str) -> list[bytes] | None:
    stored = await store.load(response_id, "me")
    return stored.steps if stored else None


async def test_what_a_disk_does_not_keep_up_with_is_limited(tmp_path: Path) -> None:
    async with opened(tmp_path, store_commit_ms=LONG_MS, max_store_backlog_bytes=20) as store:
        put(store, "a", b"x" * 10)  # and its start
        put(store, "b", b"y" * 10)
        assert await steps(store, "a") == [b"x" * 10]
        with pytest.raises(ServerError):
            await steps(store, "b")


async def test_no_store_is_none(tmp_path: Path) -> None:
    async with open_store(Settings(data_dir=tmp_path, store="none")) as store:
        assert store is None
    assert list(tmp_path.iterdir()) == []


async def test_what_was_put_is_seen_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, store_commit_ms=LONG_MS) as store:
        put(store, "r", b"0", b"1")
        assert await steps(store, "r") == [b"0", b"1"]
        store.put_step("r", 2, b"2")
    async with opened(tmp_path) as store:
        assert await steps(store, "r") == [b"0", b"1", b"2"]
        assert await store.load("r", "somebody else") is None
        assert [one.id for one in await store.load_chain("r", "me")] == ["r"]
        assert await store.delete("r", "me")
        assert await steps(store, "r") is None


async def test_conversation_is_kept_with_its_items(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        store.put_conversation("me", Conversation("c", NOW, b"{}"))
        store.put_items("c", [StoredItem("a", b"1"), StoredItem("b", b"2")])
    async with opened(tmp_path) as store:
        assert await store.get_conversation("c", "me") == Conversation("c", NOW, b"{}")
        assert await store.update_conversation("c", "me", b"[]") == Conversation("c", NOW, b"[]")
        page = await store.list_items("c", "me", limit=1, order="desc")
        assert page is not None
        assert (page.items, page.has_more) == ([StoredItem("b", b"2")], True)
        with pytest.raises(NotFound):
            await store.list_items("c", "me", limit=1, order="asc", after="nothing")
        assert await store.get_item("c", "me", "a") == StoredItem("a", b"1")
        assert await store.delete_item("c", "me", "a")
        assert await store.delete_conversation("c", "me")
        assert await store.get_conversation("c", "me") is None


async def test_cancellation_writes_what_is_queued(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_store(Settings(data_dir=tmp_path, store_commit_ms=LONG_MS)) as store:
            assert store is not None
            put(store, "r", b"0")
            scope.cancel()
            await trio.sleep_forever()
    async with opened(tmp_path) as store:
        assert await steps(store, "r") == [b"0"]


# --- when it fails -----------------------------------------------------------------------------------------------


class Failing(Database):
    """A database that cannot take one of the steps."""

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        if step == b"x":
            raise sqlite3.OperationalError("disk I/O error")
        super().put_step(response_id, number, step)


async def test_child_of_a_lost_response_cannot_be_read_as_a_chain(tmp_path: Path) -> None:
    async with started(Failing(open_database(tmp_path)._db)) as store:
        put(store, "bad", b"x")
        store.put_start("child", "me", "bad", NOW, b"")
        assert await steps(store, "child") == []
        with pytest.raises(ServerError):
            await store.load_chain("child", "me")
        with pytest.raises(ServerError):
            await store.load("bad", "me")


async def test_full_disk_loses_what_comes_and_keeps_what_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = open_database(tmp_path)
    async with started(database) as store:
        put(store, "before", b"0")
        await store.wait_durable()
        database._db.execute("PRAGMA max_page_count = 20")
        put(store, "big", b"x" * 1_000_000)
        await store.wait_durable()
        with pytest.raises(ServerError):
            await store.load("big", "me")
        assert await steps(store, "before") == [b"0"]
        database._db.execute("PRAGMA max_page_count = 100000")
        put(store, "after", b"y" * 1_000_000)
        assert await steps(store, "after") == [b"y" * 1_000_000]
    assert "the store lost big" in caplog.text
    assert "full" in caplog.text


async def test_damaged_file_is_an_error_to_readers_and_not_to_writers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        for number in range(50):
            put(store, f"r{number}", b"x" * 5000)
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole[:4096].ljust(len(whole), b"\xff"))
    async with opened(tmp_path) as store:
        put(store, "new", b"0")
        with pytest.raises(ServerError, match="The store failed"):
            await store.load("r7", "me")
    assert "malformed" in caplog.text


async def test_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnusable):
        async with open_store(Settings(data_dir=tmp_path)):
            pytest.fail("it opened")


# --- retention ---------------------------------------------------------------------------------------------------


async def test_what_is_too_old_is_deleted_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with opened(tmp_path, store_retention_s=1e9) as store:
        for number in range(250):
            put(store, f"old{number}", b"", created_at=NOW - 200_000)
        put(store, "new", b"")
    async with opened(tmp_path, store_retention_s=100_000) as store:  # longer than all tests together may take
        left = {f"old{number}" for number in range(250)}
        while left:  # each look takes a turn in the queue, between two pieces of the purge
            left = {one for one in left if await steps(store, one) is not None}
        assert await steps(store, "new") == [b""]
    assert caplog.records == []
