"""schema.py: tables are made once, and a newer file is left alone."""

import sqlite3

import pytest

from engine.schema import NewerSchema, make_schema

SCHEMA = "CREATE TABLE a (x); CREATE TABLE b (y);"


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]


@pytest.mark.parametrize("begin", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
def test_tables_are_made_once(begin: str) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for _ in range(2):
        make_schema(db, 3, SCHEMA, begin=begin)
        assert not db.in_transaction
    assert (tables(db), db.execute("PRAGMA user_version").fetchone()) == (["a", "b"], (3,))
    db.close()


def test_a_newer_file_is_left_as_it_is() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA user_version = 4")
    with pytest.raises(NewerSchema, match=r"is of a newer longloop \(version 4, this one knows 3\)\."):
        make_schema(db, 3, SCHEMA, begin="BEGIN IMMEDIATE")
    assert tables(db) == []
    db.close()
