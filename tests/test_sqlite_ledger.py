"""sqlite_ledger.py: a record is the kernel's at once and in the database a little later, whatever fails.

No mock clock here: it would not wait for a thread.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from engine.clock import wall_clock
from engine.ledger import Ledger, LedgerUnusable, QuotaExceeded
from engine.ledger_database import FILE_NAME, LedgerDatabase, open_ledger_database
from engine.ledger_journal import journal_files, read_journal
from engine.settings import Settings
from engine.sqlite_ledger import open_ledger
from engine.usage import Timing, count_usage

LONG_MS = 3_600_000
USAGE = count_usage(100, 20, cached_tokens=70)  # 50 that count


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[Ledger]:
    with trio.fail_after(20):
        async with open_ledger(Settings(data_dir=folder, **settings)) as ledger:
            assert ledger is not None
            yield ledger


def spend(ledger: Ledger, response_id: str, num_segments: int = 1, principal: str = "ann") -> None:
    now = wall_clock()
    bill = ledger.open_bill(response_id, principal, "toy", 10, now)
    for _ in range(num_segments):
        bill.settle("stop", USAGE, Timing(), now)


def in_database(folder: Path) -> list[tuple[str, int]]:
    """The segments that the database has, whatever the journal has."""
    database = open_ledger_database(folder)
    rows = database._db.execute("SELECT response_id, segment FROM segments ORDER BY 1, 2").fetchall()
    database.close()
    return rows


def killed(folder: Path, copy: Path) -> Path:
    """The folder as it would be found if the server were killed now."""
    shutil.copytree(folder, copy)
    return copy


async def test_no_ledger_is_none(tmp_path: Path) -> None:
    async with open_ledger(Settings(data_dir=tmp_path, ledger="none")) as ledger:
        assert ledger is None
    assert list(tmp_path.iterdir()) == []


async def test_next_segment_is_behind_all_that_was_ever_taken(tmp_path: Path) -> None:
    async with opened(tmp_path, ledger_commit_ms=LONG_MS) as ledger:
        spend(ledger, "one", 2)
        assert await ledger.next_segment("one") == 2
        copy = killed(tmp_path, tmp_path / "copy")
    async with opened(copy) as ledger:
        assert [await ledger.next_segment(response_id) for response_id in ("one", "other")] == [2, 0]


async def test_leaving_writes_everything_and_tidies_up(tmp_path: Path) -> None:
    async with opened(tmp_path, ledger_commit_ms=LONG_MS) as ledger:
        spend(ledger, "r", 3)
    assert in_database(tmp_path) == [("r", 0), ("r", 1), ("r", 2)]
    assert journal_files(tmp_path) == []


async def test_cancellation_loses_nothing(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with opened(tmp_path, ledger_commit_ms=LONG_MS) as ledger:
            spend(ledger, "r")
            scope.cancel()
            await trio.sleep_forever()
    async with opened(tmp_path):
        assert in_database(tmp_path) == [("r", 0)]


async def test_killed_server_has_lost_nothing(tmp_path: Path) -> None:
    """P105: at no moment is a record missing that has been taken, and it never counts twice."""
    folder = tmp_path / "a"
    async with opened(folder, ledger_commit_ms=LONG_MS) as ledger:
        spend(ledger, "r")
        before = killed(folder, tmp_path / "b")  # in the journal alone
        await ledger.wait_durable()
        after = killed(folder, tmp_path / "c")  # in both
    for copy in (before, after):
        async with opened(copy):
            assert in_database(copy) == [("r", 0)]
        assert journal_files(copy) == []


async def test_durable_is_in_the_database(tmp_path: Path) -> None:
    async with opened(tmp_path, ledger_commit_ms=LONG_MS) as ledger:
        spend(ledger, "r")
        assert in_database(tmp_path) == []
        await ledger.wait_durable()
        assert in_database(tmp_path) == [("r", 0)]


async def test_every_cut_of_the_databases_log_is_made_up_for_by_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    async with opened(folder, ledger_commit_ms=LONG_MS) as ledger:
        spend(ledger, "r", 2)
        await ledger.wait_durable()
        whole = (folder / f"{FILE_NAME}-wal").read_bytes()
        for size in range(0, len(whole), 997):
            copy = killed(folder, tmp_path / str(size))
            (copy / f"{FILE_NAME}-wal").write_bytes(whole[:size])
            async with opened(copy):
                assert in_database(copy) == [("r", 0), ("r", 1)]


async def test_full_files_of_the_journal_go_when_they_are_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.ledger_journal.LedgerJournal.__init__.__defaults__", (500,))
    async with opened(tmp_path, ledger_commit_ms=LONG_MS) as ledger:
        first = journal_files(tmp_path)
        spend(ledger, "r", 10)
        assert len(journal_files(tmp_path)) > 3
        while len(journal_files(tmp_path)) > 1:
            await trio.lowlevel.checkpoint()
        assert journal_files(tmp_path) != first
        assert len(in_database(tmp_path)) == 10


async def test_what_the_database_cannot_take_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = LedgerDatabase.put

    def refuse_one(database: LedgerDatabase, record: Any) -> None:
        if getattr(record, "segment", None) == 1:
            raise OSError("disk I/O error")
        put(database, record)

    monkeypatch.setattr("engine.ledger_journal.LedgerJournal.__init__.__defaults__", (500,))
    with monkeypatch.context() as patch:
        patch.setattr(LedgerDatabase, "put", refuse_one)
        async with opened(tmp_path) as ledger:
            spend(ledger, "r", 5)
            await ledger.wait_durable()
            assert in_database(tmp_path) == [("r", 0), ("r", 2), ("r", 3), ("r", 4)]
    assert "the ledger lost segment 1 of r" in caplog.text
    async with opened(tmp_path):
        assert len(in_database(tmp_path)) == 5


async def test_what_the_journal_cannot_take_is_in_the_log_and_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: 0)
            spend(ledger, "r")
        spend(ledger, "s")
        assert [record.response_id for record in read_journal(journal_files(tmp_path))[0]] == ["s", "s"]
    assert in_database(tmp_path) == [("r", 0), ("s", 0)]
    assert '"input_tokens":100' in caplog.text


async def test_a_journal_that_fails_says_so_until_it_takes_lines_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    async with opened(tmp_path, disk_retry_s=0.01) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]) if len(data) > 1 else 0)
            spend(ledger, "r")
            await ledger.wait_durable()
            assert ledger.failure == "its journal does not take lines"
        while ledger.failure is not None:  # nobody spends anything
            await trio.lowlevel.checkpoint()
        spend(ledger, "s")
        records, num_broken = read_journal(journal_files(tmp_path))
        assert ([record.response_id for record in records], num_broken) == (["s", "s"], 2)
    assert "the ledger's journal can be written again" in caplog.text


async def test_second_server_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(LedgerUnusable, match="Another longloop"):
            async with open_ledger(Settings(data_dir=tmp_path)):
                pytest.fail("it opened")


async def test_ledger_that_cannot_be_opened_says_so_and_lets_go(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(LedgerUnusable, match="Move it away"):
            async with open_ledger(Settings(data_dir=tmp_path)):
                pytest.fail("it opened")


# --- budgets -------------------------------------------------------------------------------------------------------


async def test_budgets_count_what_earlier_servers_have_recorded(tmp_path: Path) -> None:
    limits = {"budget_tokens": 200, "budget_tokens_per_principal": 100, "budget_period": "total"}
    async with opened(tmp_path, **limits) as ledger:
        spend(ledger, "r", principal="ann")
        ledger.check("ann", wall_clock())
    async with opened(tmp_path, **limits) as ledger:
        spend(ledger, "s", principal="ann")
        spend(ledger, "t", principal="bob")
        with pytest.raises(QuotaExceeded, match="You may use 100 tokens: 100 are used"):
            ledger.check("ann", wall_clock())
    async with opened(tmp_path, **limits) as ledger:
        with pytest.raises(QuotaExceeded, match="would set aside 51"):
            ledger.open_bill("u", "eve", "toy", 51, wall_clock())
        ledger.open_bill("u", "eve", "toy", 50, wall_clock())
        with pytest.raises(QuotaExceeded, match="All users of this server together may use 200 tokens"):
            ledger.check("dan", wall_clock())
