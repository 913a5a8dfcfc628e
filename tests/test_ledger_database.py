"""ledger_database.py: what SQLite keeps of records, any number of times over."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.ledger import Ended, LedgerUnusable, Started
from engine.ledger_database import FILE_NAME, LedgerDatabase, expect_usable, open_ledger_database
from tests.test_ledger import RECORDS, RUN, SEGMENT


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LedgerDatabase]:
    database = open_ledger_database(tmp_path)
    database.begin()
    yield database
    database.close()


def runs(database: LedgerDatabase) -> list[tuple[object, ...]]:
    return database._db.execute("SELECT response_id, status, started_at, ended_at, reserved FROM runs").fetchall()


def test_records_can_be_put_any_number_of_times(database: LedgerDatabase) -> None:
    for _ in range(3):
        for record in RECORDS:
            database.put(record)
    assert runs(database) == [("resp_1", "completed", 1_000, 3_000, 500)]
    assert database._db.execute("SELECT * FROM segments").fetchall() == [msgspec.structs.astuple(SEGMENT)]


def test_first_record_of_a_segment_counts(database: LedgerDatabase) -> None:
    database.put(SEGMENT)
    database.put(msgspec.structs.replace(SEGMENT, input_tokens=999))
    assert database._db.execute("SELECT input_tokens FROM segments").fetchall() == [(100,)]


def test_segments_and_ends_stand_without_a_start(database: LedgerDatabase) -> None:
    database.put(SEGMENT)
    database.put(Ended("resp_9", 1, "completed"))
    assert runs(database) == []


def test_runs_of_a_server_that_is_gone_are_interrupted_until_they_go_on(database: LedgerDatabase) -> None:
    database.put(RUN)
    database.put(Started("resp_2", "ann", "toy", 5, 0))
    database.put(Ended("resp_2", 6, "failed"))
    database.interrupt_runs()
    assert [row[:2] for row in runs(database)] == [("resp_1", "interrupted"), ("resp_2", "failed")]
    database.put(msgspec.structs.replace(RUN, at=9_000))
    assert runs(database)[0] == ("resp_1", "in_progress", 1_000, None, 500)


def test_what_counts_towards_a_budget(database: LedgerDatabase) -> None:
    for number, (principal, at) in enumerate([("ann", 10), ("ann", 20), ("bob", 20), ("bob", 5)]):
        database.put(msgspec.structs.replace(SEGMENT, segment=number, principal=principal, at=at))
    assert database.computed_since(10) == {"ann": 100, "bob": 50}


def test_rollback_undoes_and_commit_keeps(tmp_path: Path, database: LedgerDatabase) -> None:
    database.put(RUN)
    database.commit()
    database.begin()
    database.put(SEGMENT)
    database.rollback()
    database.rollback()  # there is nothing to undo, which is no fault
    database.close()
    again = open_ledger_database(tmp_path)
    assert len(runs(again)) == 1
    assert again.computed_since(0) == {}
    again.close()


def test_file_is_its_owners_alone(tmp_path: Path, database: LedgerDatabase) -> None:
    database.commit()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_newer_file_is_refused(tmp_path: Path) -> None:
    open_ledger_database(tmp_path).close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(LedgerUnusable, match="newer longloop"):
        open_ledger_database(tmp_path)


def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerUnusable, match="Move it away"), expect_usable(file):
        open_ledger_database(tmp_path)
