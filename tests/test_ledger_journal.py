"""ledger_journal.py: files that can be cut anywhere, are begun anew when full, and belong to one server at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.ledger import LedgerUnusable, Record, encode_line
from engine.ledger_database import LedgerDatabase, open_ledger_database
from engine.ledger_journal import LedgerJournal, LedgerLock, journal_files, read_journal, take_in
from tests.test_ledger import RECORDS


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[LedgerJournal]:
    journal = LedgerJournal(tmp_path, max_bytes=1000)
    yield journal
    journal.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LedgerDatabase]:
    database = open_ledger_database(tmp_path)
    yield database
    database.close()


def append(journal: LedgerJournal, *records: Record) -> None:
    for record in records:
        journal.append(encode_line(record))


def segments(database: LedgerDatabase) -> int:
    (count,) = database._db.execute("SELECT count(*) FROM segments").fetchone()
    return int(count)


def test_records_are_there_at_once(journal: LedgerJournal, tmp_path: Path) -> None:
    append(journal, *RECORDS)
    assert read_journal(journal_files(tmp_path)) == (RECORDS, 0)
    assert journal.file.stat().st_mode & 0o777 == 0o600


def test_full_file_is_followed_by_another(journal: LedgerJournal, tmp_path: Path) -> None:
    full = []
    for _ in range(10):
        append(journal, *RECORDS)
        full += [file for file in [journal.rotate()] if file is not None]
    assert [*full, journal.file] == journal_files(tmp_path)
    assert len(full) > 2
    assert read_journal(journal_files(tmp_path)) == (RECORDS * 10, 0)
    assert all(file.stat().st_size >= 1000 for file in full)


def test_file_that_cannot_be_followed_goes_on(journal: LedgerJournal, tmp_path: Path) -> None:
    append(journal, *RECORDS * 3)
    (tmp_path / "ledger-00000001.journal").mkdir()
    with pytest.raises(OSError, match="exists"):
        journal.rotate()
    append(journal, *RECORDS)
    assert read_journal([journal.file]) == (RECORDS * 4, 0)


def test_half_a_line_on_a_full_disk_spoils_no_other(
    journal: LedgerJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    for size in (5, 0, 1):  # of the last two, the first writes nothing and the second the line break that is due
        monkeypatch.setattr(os, "write", lambda descriptor, data, size=size: write(descriptor, data[:size]))
        with pytest.raises(OSError, match=f"only {size} of"):
            append(journal, RECORDS[0])
    monkeypatch.setattr(os, "write", write)
    append(journal, *RECORDS)
    records, num_broken = read_journal(journal_files(tmp_path))
    assert records == RECORDS
    assert num_broken > 0


def test_file_that_disappears_meanwhile_is_no_fault(tmp_path: Path) -> None:
    assert read_journal([tmp_path / "ledger-00000000.journal"]) == ([], 0)


def test_what_was_left_behind_is_taken_in_once(
    journal: LedgerJournal, database: LedgerDatabase, tmp_path: Path
) -> None:
    append(journal, *RECORDS)
    database.begin()
    for record in RECORDS:
        database.put(record)
    database.commit()
    take_in(tmp_path, database)
    assert segments(database) == 1
    assert journal_files(tmp_path) == []


def test_cut_at_every_byte_of_the_last_record_is_recovered(
    database: LedgerDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P105: a half-written record is one that no client has heard of; all before it are there, once."""
    first, last = map(encode_line, RECORDS[:2])
    for size in range(len(last) + 1):
        database._db.execute("DELETE FROM segments")
        (tmp_path / "ledger-00000000.journal").write_bytes(first + last[:size])
        take_in(tmp_path, database)
        assert segments(database) == int(size == len(last))
        assert journal_files(tmp_path) == []
    assert "1 that are not whole" in caplog.text


def test_failure_to_take_in_keeps_the_files(journal: LedgerJournal, database: LedgerDatabase, tmp_path: Path) -> None:
    append(journal, *RECORDS)
    database._db.execute("DROP TABLE segments")
    with pytest.raises(Exception, match="no such table"):
        take_in(tmp_path, database)
    assert read_journal(journal_files(tmp_path)) == (RECORDS, 0)


# --- the lock ------------------------------------------------------------------------------------------------------


def test_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    lock = LedgerLock(tmp_path / "new" / "folder")
    with pytest.raises(LedgerUnusable, match="Another longloop uses the ledger"):
        LedgerLock(tmp_path / "new" / "folder")
    lock.release()
    LedgerLock(tmp_path / "new" / "folder").release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from engine.ledger_journal import LedgerLock\n"
    code += "LedgerLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(LedgerUnusable):
            LedgerLock(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    LedgerLock(tmp_path).release()


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnusable, match="cannot be opened"):
        LedgerLock(tmp_path / "file" / "folder")
