"""Reading a ledger, also while a server writes it: what is in its database, and what is still in its journal only."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from engine.ledger import LedgerUnusable, Record
from engine.ledger_database import COLUMNS, FILE_NAME, SCHEMA, LedgerDatabase, expect_usable
from engine.ledger_journal import journal_files, read_journal
from engine.schema import make_tables

Column = Literal["day", "model", "principal"]

_VIEWS: Final = """
CREATE TEMP VIEW all_runs AS
SELECT * FROM main.runs UNION ALL
SELECT * FROM disk.runs d WHERE NOT EXISTS (SELECT 1 FROM main.runs m WHERE m.response_id = d.response_id);
CREATE TEMP VIEW all_segments AS
SELECT * FROM disk.segments UNION ALL
SELECT * FROM main.segments m WHERE NOT EXISTS
(SELECT 1 FROM disk.segments d WHERE d.response_id = m.response_id AND d.segment = m.segment);
"""
_EPOCH: Final = date(1970, 1, 1)
_ONE_DAY: Final = timedelta(days=1)
_DAY_MS: Final = 86_400_000
_DAY: Final = "date(at / 1000, 'unixepoch')"


class Usage(msgspec.Struct, frozen=True):
    """What a group of segments came to. `group`: its values of the columns that it was formed by."""

    group: tuple[str, ...]
    runs: int
    segments: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


@contextmanager
def open_ledger_reader(folder: Path) -> Iterator["LedgerReader"]:
    """The ledger in `folder` as it is now. Raises LedgerUnusable."""
    file = folder / FILE_NAME
    if not file.exists():
        raise LedgerUnusable(f"There is no ledger in {folder} yet.")
    with expect_usable(file):
        pending, _ = read_journal(journal_files(folder))  # first: what leaves the journal meanwhile is in the database
        with closing(sqlite3.connect(":memory:", isolation_level=None, uri=True)) as db:
            make_tables(db, SCHEMA)
            db.execute("ATTACH ? AS disk", (f"file:{quote(str(file))}?mode=ro",))
            db.execute("BEGIN")  # one state of it, however long somebody reads
            _add(db, pending)
            yield LedgerReader(db)


def _add(db: sqlite3.Connection, pending: list[Record]) -> None:
    """Make a ledger in memory of what the database may lack; the views show both as one."""
    ids = {(record.response_id,) for record in pending}
    db.executemany("INSERT INTO main.runs SELECT * FROM disk.runs WHERE response_id = ?", ids)
    extra = LedgerDatabase(db)
    for record in pending:
        extra.put(record)
    for view in _VIEWS.split(";"):
        db.execute(view)


class LedgerReader:
    """An open ledger. `since` and `until` are days (UTC), both of them included; None for no bound."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def usage(self, by: Sequence[Column], since: date | None = None, until: date | None = None) -> list[Usage]:
        """What was used, by these columns, in their order."""
        names = [_DAY if name == "day" else name for name in by]
        sums = ", ".join(f"sum({name}_tokens)" for name in ("input", "cached", "output", "reasoning"))
        columns = ", ".join([*names, "count(DISTINCT response_id)", "count(*)", sums])
        grouping = ", ".join(str(number + 1) for number in range(len(names)))
        tail = f"GROUP BY {grouping} ORDER BY {grouping}" if names else "HAVING count(*) > 0"
        rows = self._select(columns, "all_segments", since, until, tail)
        return [Usage(row[: len(by)], *row[len(by) :]) for row in rows]

    def segments(self, since: date | None = None, until: date | None = None) -> Iterator[dict[str, Any]]:
        """Every segment, oldest first: its record, and how its run stands (`status`)."""
        columns = ", ".join([*(f"s.{name}" for name in COLUMNS), "r.status"])
        tables = "all_segments s LEFT JOIN all_runs r USING (response_id)"
        for row in self._select(columns, tables, since, until, "ORDER BY at, response_id, segment"):
            yield dict(zip([*COLUMNS, "status"], row, strict=True))

    def _select(self, columns: str, tables: str, since: date | None, until: date | None, tail: str) -> sqlite3.Cursor:
        start, stop = since or date.min, until or date.max - _ONE_DAY
        bounds = (_day_ms(start), _day_ms(stop + _ONE_DAY))
        return self._db.execute(f"SELECT {columns} FROM {tables} WHERE at >= ? AND at < ? {tail}", bounds)


def _day_ms(day: date) -> int:
    """When a day begins, epoch in ms."""
    return (day - _EPOCH).days * _DAY_MS
