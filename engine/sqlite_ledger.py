"""The ledger on disk: each record goes into the journal at once and into the database a little later.

The first is one system call on the event loop, some microseconds: that is all that a step waits for. The second is
done by a thread, in groups. Behind it comes the janitor, who removes journal files that are in the database as a whole.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from engine.bill import RunBill
from engine.budget import Budget, Limits, period_start
from engine.clock import wall_clock
from engine.errors import ServerError
from engine.group_commit import GroupCommit, open_group_commit
from engine.ledger import Bill, Ended, Ledger, Record, Segment, Started, encode_line, to_ms
from engine.ledger_database import FILE_NAME, LedgerDatabase, expect_usable, open_ledger_database
from engine.ledger_journal import LedgerJournal, LedgerLock, journal_files, take_in
from engine.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Files:
    database: LedgerDatabase
    journal: LedgerJournal
    budget: Budget | None


@asynccontextmanager
async def open_ledger(settings: Settings) -> AsyncIterator[Ledger | None]:
    """The ledger that the settings name; None when they name none. Leaving the block writes all that was taken.

    Raises LedgerUnusable.
    """
    if settings.ledger == "none":
        yield None
        return
    lock = await trio.to_thread.run_sync(LedgerLock, settings.data_dir)
    try:
        files = await trio.to_thread.run_sync(_open_files, settings)
        with closing(files.journal):
            async with open_group_commit(
                "ledger", files.database, settings.ledger_commit_ms, retry_s=settings.disk_retry_s
            ) as disk:
                ledger = SqliteLedger(files.journal, disk, files.budget)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ledger.tidy)
                    nursery.start_soon(ledger.mend, settings.disk_retry_s)
                    yield ledger
                    nursery.cancel_scope.cancel("the ledger closes")
        if not disk.has_lost:
            for file in journal_files(settings.data_dir):
                file.unlink()
    finally:
        lock.release()


def _open_files(settings: Settings) -> _Files:
    """The folder's files, with all that was left behind in the database."""
    folder = settings.data_dir
    with expect_usable(folder / FILE_NAME):
        database = open_ledger_database(folder)
        try:
            take_in(folder, database)
            return _Files(database, LedgerJournal(folder), _budget(settings, database))
        except BaseException:
            database.close()
            raise


def _budget(settings: Settings, database: LedgerDatabase) -> Budget | None:
    limits = Limits(settings.budget_tokens, settings.budget_tokens_per_principal, settings.budget_period)
    if not (limits.of_server or limits.of_principal):
        return None
    now = wall_clock()
    return Budget(limits, database.computed_since(to_ms(period_start(limits.period, now))), now)


class SqliteLedger:
    """See Ledger."""

    def __init__(self, journal: LedgerJournal, disk: GroupCommit[LedgerDatabase], budget: Budget | None) -> None:
        self._journal = journal
        self._disk = disk
        self._budget = budget
        self._full: list[Path] = []
        self._has_full = trio.Event()
        self._has_torn = trio.Event()

    @property
    def failure(self) -> str | None:
        return self._disk.failure or ("its journal does not take lines" if self._journal.is_failing else None)

    def check(self, principal: str, now: float) -> None:
        if self._budget is not None:
            self._budget.check(principal, 1, now)

    def open_bill(
        self, response_id: str, principal: str, model: str, num_tokens: int, now: float, first_segment: int = 0
    ) -> Bill:
        run = Started(response_id, principal, model, to_ms(now), num_tokens)
        return RunBill(run, self._budget, self._write, first_segment)

    async def next_segment(self, response_id: str) -> int:
        return await self._disk.ask(lambda db: db.next_segment(response_id))

    async def wait_durable(self) -> None:
        await self._disk.wait_durable()

    def _write(self, record: Record) -> None:
        line = encode_line(record)
        try:
            self._journal.append(line)
            if full := self._journal.rotate():
                self._full.append(full)
                self._has_full.set()
        except OSError:
            log.exception("the ledger's journal fails; it may lack %s", line.decode().rstrip())
            if self._journal.is_failing:
                self._has_torn.set()
        self._disk.put(_name(record), lambda db: db.put(record))

    async def tidy(self) -> None:
        """Remove full files of the journal once all of them is in the database; never returns."""
        while True:
            await self._has_full.wait()
            self._has_full = trio.Event()
            full, self._full = self._full, []
            await self._remove(full)

    async def mend(self, retry_s: float) -> None:
        """Try a journal that fails, until it takes something again; never returns."""
        while True:
            await self._has_torn.wait()
            self._has_torn = trio.Event()
            while self._journal.is_failing:
                await trio.sleep(retry_s)
                with suppress(OSError):
                    self._journal.mend()
            log.warning("the ledger's journal can be written again")

    async def _remove(self, files: list[Path]) -> None:
        try:
            await self._disk.wait_durable()
        except ServerError:  # has been logged; they stay for the next start
            return
        if not self._disk.has_lost:
            for file in files:
                await trio.to_thread.run_sync(file.unlink)


def _name(record: Record) -> str:
    """What the log calls a record."""
    match record:
        case Started():
            return f"the start of {record.response_id}"
        case Segment():
            return f"segment {record.segment} of {record.response_id}"
        case Ended():
            return f"the end of {record.response_id}"
