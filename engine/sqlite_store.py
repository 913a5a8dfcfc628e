"""The store on disk: one thread that owns the database, a queue into it, and commits in groups.

The queue is the order of everything, and one connection does all of it, so what was put is seen by whatever is asked
later, committed or not. The first put opens a window of `store_commit_ms`; when it is over, or somebody asks for
something meanwhile, the thread takes all that is queued into one transaction. An event loop that puts a step spends
some microseconds on it, and wakes the thread once a window.

A transaction that fails is tried again job by job, so that only those are lost which really cannot be written.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Final, TypeVar

import trio

from engine.clock import wall_clock
from engine.database import Database, open_database
from engine.errors import EngineError, ServerError
from engine.settings import Settings
from engine.store import Conversation, Order, Page, Store, Stored, StoredItem

log = logging.getLogger(__name__)

_T = TypeVar("_T")
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
    store = SqliteStore(database, settings.store_commit_ms)
    async with trio.open_nursery() as thread:
        thread.start_soon(_serve, store)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_purge, store, settings.store_retention_s)
                yield store
                nursery.cancel_scope.cancel("the store closes")
        finally:
            store.stop()  # cancellation does not end the thread; this does, when it has written everything


async def _serve(store: "SqliteStore") -> None:
    with trio.CancelScope(shield=True):  # until `stop`; a thread does not heed cancellation, but must have been started
        await trio.to_thread.run_sync(store.serve, thread_name="store", limiter=trio.CapacityLimiter(1))


async def _purge(store: "SqliteStore", retention_s: float) -> None:
    """Forget what is too old, now and every hour, in pieces between which others get their turn."""
    while True:
        with suppress(ServerError):  # has been logged
            while await store.purge(wall_clock() - retention_s):
                pass
        await trio.sleep(_PURGE_EVERY_S)


class _Job:
    """Something for the thread to do. `lost_with` names what is lost when a put fails; who asks hears of a failure."""

    __slots__ = ("act", "answered", "error", "lost_with", "value")

    def __init__(self, act: Callable[[Database], Any], lost_with: str | None = None) -> None:
        self.act = act
        self.lost_with = lost_with
        self.answered = trio.Event() if lost_with is None else None
        self.value: Any = None
        self.error: EngineError | None = None


class SqliteStore:
    """See Store; `serve` is the thread's whole life."""

    def __init__(self, database: Database, commit_ms: int) -> None:
        self._database = database
        self._commit_s = commit_ms / 1000
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._somebody_waits = Event()
        self._is_open = True
        self._lost: set[str] = set()  # only the thread touches it

    # --- responses ---

    def put_start(self, response_id: str, principal: str, parent: str | None, created_at: int, start: bytes) -> None:
        self._put(response_id, lambda db: db.put_start(response_id, principal, parent, created_at, start))

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        self._put(response_id, lambda db: db.put_step(response_id, number, step))

    async def load(self, response_id: str, principal: str) -> Stored | None:
        return await self._ask(lambda db: db.load(self._expect(response_id), principal))

    async def load_chain(self, response_id: str, principal: str) -> list[Stored]:
        def act(db: Database) -> list[Stored]:
            chain = db.load_chain(self._expect(response_id), principal)
            for stored in chain:
                self._expect(stored.id)
            return chain

        return await self._ask(act)

    async def delete(self, response_id: str, principal: str) -> bool:
        return await self._ask(lambda db: db.delete(response_id, principal))

    async def purge(self, before: float) -> bool:
        """Forget some responses that nobody has gone on from since `before`. False when there are no more."""
        return await self._ask(lambda db: db.purge(before, _PURGE_AT_ONCE))

    async def wait_durable(self) -> None:
        await self._ask(lambda db: None)

    # --- conversations ---

    def put_conversation(self, principal: str, conversation: Conversation) -> None:
        self._put(conversation.id, lambda db: db.put_conversation(principal, conversation))

    def put_items(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        self._put(conversation_id, lambda db: db.put_items(conversation_id, items))

    async def get_conversation(self, conversation_id: str, principal: str) -> Conversation | None:
        return await self._ask(lambda db: db.get_conversation(self._expect(conversation_id), principal))

    async def update_conversation(self, conversation_id: str, principal: str, metadata: bytes) -> Conversation | None:
        return await self._ask(lambda db: db.update_conversation(self._expect(conversation_id), principal, metadata))

    async def delete_conversation(self, conversation_id: str, principal: str) -> bool:
        return await self._ask(lambda db: db.delete_conversation(conversation_id, principal))

    async def list_items(
        self, conversation_id: str, principal: str, *, limit: int, order: Order, after: str | None = None
    ) -> Page | None:
        return await self._ask(lambda db: db.list_items(self._expect(conversation_id), principal, limit, order, after))

    async def get_item(self, conversation_id: str, principal: str, item_id: str) -> StoredItem | None:
        return await self._ask(lambda db: db.get_item(self._expect(conversation_id), principal, item_id))

    async def delete_item(self, conversation_id: str, principal: str, item_id: str) -> bool:
        return await self._ask(lambda db: db.delete_item(self._expect(conversation_id), principal, item_id))

    # --- into the queue ---

    def _put(self, key: str, act: Callable[[Database], None]) -> None:
        self._enqueue(_Job(act, lost_with=key))

    async def _ask(self, act: Callable[[Database], _T]) -> _T:
        job = _Job(act)
        self._enqueue(job)
        self._somebody_waits.set()
        assert job.answered is not None
        await job.answered.wait()
        if job.error is not None:
            raise job.error
        value: _T = job.value
        return value

    def _enqueue(self, job: _Job) -> None:
        if not self._is_open:
            raise ValueError("the store is closed")
        self._queue.put(job)

    def stop(self) -> None:
        """Take no more; `serve` returns when what was put is written."""
        self._is_open = False
        self._queue.put(None)
        self._somebody_waits.set()

    # --- out of it: the thread ---

    def serve(self) -> None:
        """Do what comes through the queue, until `stop`."""
        is_over = False
        while not is_over:
            taken = [self._queue.get()]
            self._somebody_waits.wait(self._commit_s)
            self._somebody_waits.clear()  # before the queue is emptied: who sets it has put a job there
            with suppress(Empty):
                while True:
                    taken.append(self._queue.get_nowait())
            is_over = None in taken
            jobs = [job for job in taken if job is not None]
            self._do(jobs)
            if asked := [job.answered for job in jobs if job.answered is not None]:
                trio.from_thread.run_sync(_set_all, asked)
        self._database.close()

    def _do(self, jobs: list[_Job]) -> None:
        """All of them in one transaction or, when that fails, each in its own."""
        try:
            self._transact(jobs)
        except Exception:
            if len(jobs) > 1:
                for job in jobs:
                    self._do([job])
            else:
                self._fail(jobs[0])

    def _transact(self, jobs: list[_Job]) -> None:
        self._database.begin()
        try:
            for job in jobs:
                if job.lost_with not in self._lost:
                    self._act(job)
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise

    def _act(self, job: _Job) -> None:
        job.error = None  # of the first try
        try:
            job.value = job.act(self._database)
        except EngineError as error:
            job.error = error

    def _fail(self, job: _Job) -> None:
        if job.lost_with is None:
            log.exception("the store failed")
            job.error = ServerError("The store failed.")
        else:
            log.exception("the store lost %s", job.lost_with)
            self._lost.add(job.lost_with)

    def _expect(self, key: str) -> str:
        if key in self._lost:
            raise ServerError("The store failed.")
        return key


def _set_all(events: list[trio.Event]) -> None:
    for event in events:
        event.set()
