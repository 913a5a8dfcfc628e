"""The store on disk: a SQLite database with a thread of its own, which forgets what is too old."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from engine.clock import wall_clock
from engine.database import Database, open_database
from engine.errors import ServerError
from engine.group_commit import GroupCommit, open_group_commit
from engine.settings import Settings
from engine.store import Conversation, Order, Page, Store, Stored, StoredItem

_PURGE_EVERY_S: Final = 3600
_PURGE_AT_ONCE: Final = 100  # responses; takes some 10 ms, during which nobody else is served


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store | None]:
    """The store that the settings name; None when they name none. Leaving the block writes all that was put.

    Raises StoreUnusable.
    """
    if settings.store == "none":
        yield None
        return
    database = await trio.to_thread.run_sync(open_database, settings.data_dir)
    async with open_group_commit(
        "store", database, settings.store_commit_ms, settings.max_store_backlog_bytes, settings.disk_retry_s
    ) as disk:
        store = SqliteStore(disk)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_purge, store, settings.store_retention_s)
            yield store
            nursery.cancel_scope.cancel("the store closes")


async def _purge(store: "SqliteStore", retention_s: float) -> None:
    """Forget what is too old, now and every hour, in pieces between which others get their turn."""
    while True:
        with suppress(ServerError):  # has been logged
            while await store.purge(wall_clock() - retention_s):
                pass
        await trio.sleep(_PURGE_EVERY_S)


class SqliteStore:
    """See Store."""

    def __init__(self, disk: GroupCommit[Database]) -> None:
        self._disk = disk

    @property
    def failure(self) -> str | None:
        return self._disk.failure

    # --- responses ---

    def put_start(self, response_id: str, principal: str, parent: str | None, created_at: int, start: bytes) -> None:
        self._disk.put(
            response_id, lambda db: db.put_start(response_id, principal, parent, created_at, start), len(start)
        )

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        self._disk.put(response_id, lambda db: db.put_step(response_id, number, step), len(step))

    async def load(self, response_id: str, principal: str) -> Stored | None:
        return await self._disk.ask(lambda db: db.load(self._disk.expect(response_id), principal))

    async def load_chain(self, response_id: str, principal: str) -> list[Stored]:
        def act(db: Database) -> list[Stored]:
            chain = db.load_chain(self._disk.expect(response_id), principal)
            for stored in chain:
                self._disk.expect(stored.id)
            return chain

        return await self._disk.ask(act)

    async def delete(self, response_id: str, principal: str) -> bool:
        return await self._disk.ask(lambda db: db.delete(response_id, principal))

    async def purge(self, before: float) -> bool:
        """Forget some responses that nobody has gone on from since `before`. False when there are no more."""
        return await self._disk.ask(lambda db: db.purge(before, _PURGE_AT_ONCE))

    async def wait_durable(self) -> None:
        await self._disk.wait_durable()

    # --- conversations ---

    def put_conversation(self, principal: str, conversation: Conversation) -> None:
        self._disk.put(conversation.id, lambda db: db.put_conversation(principal, conversation))

    def put_items(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        self._disk.put(conversation_id, lambda db: db.put_items(conversation_id, items))

    async def get_conversation(self, conversation_id: str, principal: str) -> Conversation | None:
        return await self._disk.ask(lambda db: db.get_conversation(self._disk.expect(conversation_id), principal))

    async def update_conversation(self, conversation_id: str, principal: str, metadata: bytes) -> Conversation | None:
        return await self._disk.ask(
            lambda db: db.update_conversation(self._disk.expect(conversation_id), principal, metadata)
        )

    async def delete_conversation(self, conversation_id: str, principal: str) -> bool:
        return await self._disk.ask(lambda db: db.delete_conversation(conversation_id, principal))

    async def list_items(
        self, conversation_id: str, principal: str, *, limit: int, order: Order, after: str | None = None
    ) -> Page | None:
        return await self._disk.ask(
            lambda db: db.list_items(self._disk.expect(conversation_id), principal, limit, order, after)
        )

    async def get_item(self, conversation_id: str, principal: str, item_id: str) -> StoredItem | None:
        return await self._disk.ask(lambda db: db.get_item(self._disk.expect(conversation_id), principal, item_id))

    async def delete_item(self, conversation_id: str, principal: str, item_id: str) -> bool:
        return await self._disk.ask(lambda db: db.delete_item(self._disk.expect(conversation_id), principal, item_id))
