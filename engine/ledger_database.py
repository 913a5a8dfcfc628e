"""The ledger's SQLite file: its schema and every statement, synchronous, for one thread at a time.

Others may read it while the server writes (`longloop usage` does); who may write is decided by the journal's lock.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, assert_never

from engine.ledger import Ended, LedgerUnusable, Record, Segment, Started
from engine.schema import NewerSchema, make_schema, try_to_write

FILE_NAME: Final = "ledger.sqlite3"
_VERSION: Final = 1
_LOCK_TIMEOUT_S: Final = 5

SCHEMA: Final = """
CREATE TABLE runs (
    response_id TEXT PRIMARY KEY, principal TEXT NOT NULL, model TEXT NOT NULL, started_at INTEGER NOT NULL,
    reserved INTEGER NOT NULL, ended_at INTEGER, status TEXT NOT NULL
);
CREATE INDEX runs_open ON runs (status) WHERE status = 'in_progress';
CREATE TABLE segments (
    response_id TEXT, segment INTEGER, principal TEXT NOT NULL, model TEXT NOT NULL, at INTEGER NOT NULL,
    reason TEXT NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL, queue_ms REAL NOT NULL,
    prefill_ms REAL NOT NULL, sampling_ms REAL NOT NULL, client_wait_ms REAL NOT NULL,
    PRIMARY KEY (response_id, segment)
);
CREATE INDEX segments_by_time ON segments (at);
"""
COLUMNS: Final = Segment.__struct_fields__
_PUT_SEGMENT: Final = f"INSERT OR IGNORE INTO segments VALUES ({', '.join('?' * len(COLUMNS))})"
_PUT_START: Final = (
    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, NULL, 'in_progress')"
    " ON CONFLICT (response_id) DO UPDATE SET status = 'in_progress', ended_at = NULL"
)


@contextmanager
def expect_usable(file: Path) -> Iterator[None]:
    """Turns what fails inside into LedgerUnusable, with a sentence for the user."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads what is printed has enough; nothing is wrong with the ledger
    except (OSError, sqlite3.Error) as error:
        raise LedgerUnusable(
            f"The ledger {file} cannot be used ({error}). Move it away to start with a new one."
        ) from error


def open_ledger_database(folder: Path) -> "LedgerDatabase":
    """The ledger in `folder`, made if need be. Raises sqlite3.Error, OSError, and LedgerUnusable for a newer one."""
    file = folder / FILE_NAME
    file.touch(mode=0o600)  # SQLite gives its log the file's mode
    file.chmod(0o600)
    db = sqlite3.connect(file, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, file)
    except BaseException:
        db.close()
        raise
    return LedgerDatabase(db)


def _prepare(db: sqlite3.Connection, file: Path) -> None:
    """Make the tables if the file is new."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA cache_size = -256")  # KiB; rows are put and not looked for, so more would only be memory
    db.execute("PRAGMA synchronous = FULL")  # a commit is on disk, also when the machine loses its power
    try:
        make_schema(db, _VERSION, SCHEMA, begin="BEGIN IMMEDIATE")
    except NewerSchema as error:
        raise LedgerUnusable(f"The ledger {file} {error}") from error


class LedgerDatabase:
    """An open ledger. Everything may raise sqlite3.Error; writing methods need a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self) -> None:
        """Start a transaction."""
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """All since `begin` is on disk when this returns."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo all since `begin`; SQLite may have done so already. Never raises."""
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def try_to_write(self, num_bytes: int) -> None:
        """Write this much and take it away again; not inside a transaction."""
        try_to_write(self._db, num_bytes)

    def close(self) -> None:
        """Write the log back into the file and close it."""
        self._db.close()

    def put(self, record: Record) -> None:
        """Take a record in. Of a segment the first one counts."""
        match record:
            case Segment():
                self._db.execute(_PUT_SEGMENT, [getattr(record, name) for name in COLUMNS])
            case Started(response_id, principal, model, at, reserved):
                self._db.execute(_PUT_START, (response_id, principal, model, at, reserved))
            case Ended(response_id, at, status):
                values = (at, status, response_id)
                self._db.execute("UPDATE runs SET ended_at = ?, status = ? WHERE response_id = ?", values)
            case _:
                assert_never(record)

    def next_segment(self, response_id: str) -> int:
        """The number behind the last one of this response."""
        (last,) = self._db.execute("SELECT max(segment) FROM segments WHERE response_id = ?", [response_id]).fetchone()
        return 0 if last is None else last + 1

    def interrupt_runs(self) -> None:
        """Nobody carries the open runs any more: the server that did so is gone. One that goes on says so itself."""
        self._db.execute("UPDATE runs SET status = 'interrupted' WHERE status = 'in_progress'")

    def computed_since(self, at: int) -> dict[str, int]:
        """Tokens that count towards a budget, by principal, of segments from `at` (epoch, ms) on."""
        rows = self._db.execute(
            "SELECT principal, sum(input_tokens - cached_tokens + output_tokens) FROM segments WHERE at >= ?"
            " AND reason != 'prepared' GROUP BY principal",
            (at,),
        )
        return dict(rows)
