"""The tables of an SQLite file: made when it is new, known by their version afterwards; and whether it takes more."""

from typing import Any, Protocol


class Executes(Protocol):
    """See `sqlite3.Connection`."""

    def execute(self, sql: str, /) -> Any: ...


class NewerSchema(Exception):
    """The file is of a newer longloop. The message goes on from the file's name."""


def make_schema(db: Executes, version: int, schema: str, *, begin: str) -> None:
    """Make the tables of a file that has none, in one transaction. Raises NewerSchema, and what `db` does.

    begin: the statement that takes the lock.
    """
    db.execute(begin)
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > version:
        raise NewerSchema(f"is of a newer longloop (version {found}, this one knows {version}).")
    if found == 0:
        make_tables(db, schema)
        db.execute(f"PRAGMA user_version = {version}")
    db.execute("COMMIT")


def make_tables(db: Executes, schema: str) -> None:
    """Make the tables of an empty file."""
    for statement in schema.split(";"):
        db.execute(statement)


def try_to_write(db: Executes, num_bytes: int) -> None:
    """Write this much to the disk and take it away again, outside of a transaction. Raises what `db` does."""
    db.execute("DROP TABLE IF EXISTS trial")  # of one that was killed in between
    db.execute(f"CREATE TABLE trial AS SELECT zeroblob({num_bytes})")
    db.execute("DROP TABLE trial")
