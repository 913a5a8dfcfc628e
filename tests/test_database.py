"""database.py: what SQLite keeps is what the fake keeps, on disk, for one process and for its owner alone."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.database import FILE_NAME, Database, open_database
from engine.errors import NotFound
from engine.store import Conversation, StoredItem, StoreUnusable
from engine.store_fake import MemoryStore


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path)
    database.begin()
    yield database
    database.close()


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine that never waits returns."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class Walk:
    """Does the same to both stores, and wants the same from both."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self.database, self.fake, self.chance = database, MemoryStore(), chance

    def both(self, name: str, *args: Any, **named: Any) -> None:
        def act(on: Any) -> Any:
            try:
                outcome = getattr(on, name)(*args, **named)
                return at_once(outcome) if isinstance(outcome, Coroutine) else outcome
            except NotFound as error:
                return error.body()

        assert act(self.database) == act(self.fake), (name, args)

    def move(self) -> None:
        chance = self.chance
        one, other = f"r{chance.randrange(5)}", f"r{chance.randrange(5)}"
        who = chance.choice("ab")
        conversation, item = f"c{chance.randrange(2)}", f"i{chance.randrange(4)}"
        items = [StoredItem(f"i{chance.randrange(4)}", chance.randbytes(3)) for _ in range(chance.randrange(4))]
        match chance.randrange(13):
            case 0:
                # A chain is one principal's, and never a circle: the server mints ids and checks parents.
                parent = f"r{chance.randrange(int(one[1]))}" if one != "r0" and chance.random() < 0.7 else None
                self.both("put_start", one, "a", parent, chance.randrange(9), chance.randbytes(3))
            case 1 | 2:
                self.both("put_step", one, chance.randrange(3), chance.randbytes(3))
            case 3:
                self.both("load", one, who)
            case 4:
                self.both("load_chain", other, who)
            case 5:
                self.both("delete", one, who)
            case 6:
                self.both("put_conversation", who, Conversation(conversation, chance.randrange(9), b"{}"))
            case 7:
                self.both("put_items", conversation, items)
            case 8:
                self.both("get_conversation", conversation, who)
                self.both("update_conversation", conversation, who, chance.randbytes(2))
            case 9:
                self.both("delete_conversation", conversation, who)
            case 10:
                self.both("get_item", conversation, who, item)
                self.both("delete_item", conversation, who, item)
            case _:
                where = {"limit": chance.randrange(1, 4), "order": chance.choice(["asc", "desc"])}
                self.both("list_items", conversation, who, **where, after=chance.choice([None, item]))


@given(seed=st.integers(0, 2**32))
def test_any_walk_gives_what_the_fake_gives(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    database = open_database(tmp_path_factory.mktemp("store"))
    database.begin()
    walk = Walk(database, random.Random(seed))
    for _ in range(150):
        walk.move()
    database.close()


# --- on disk -----------------------------------------------------------------------------------------------------


def test_what_was_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    database = open_database(tmp_path / "a" / "b")
    database.begin()
    database.put_start("r", "me", None, 1, b"start")
    database.put_step("r", 0, b"\x00\xff")
    database.commit()
    database.begin()
    database.put_step("r", 1, b"lost")
    database.close()
    again = open_database(tmp_path / "a" / "b")
    stored = again.load("r", "me")
    assert stored is not None
    assert (stored.start, stored.steps, stored.created_at) == (b"start", [b"\x00\xff"], 1)
    again.close()


def test_only_the_owner_of_the_files_can_read_them(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch(mode=0o644)
    database = open_database(tmp_path)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {FILE_NAME: 0o600, f"{FILE_NAME}-wal": 0o600}
    database.close()
    made = open_database(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    made.close()


def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.begin()
    database.put_start("r", "me", None, 1, b"a secret to be forgotten" * 1000)
    database.commit()
    database.begin()
    assert database.delete("r", "me")
    database.commit()
    database.close()
    assert b"secret" not in (tmp_path / FILE_NAME).read_bytes()


def test_second_server_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.database._LOCK_TIMEOUT_S", 0)
    database = open_database(tmp_path)
    with pytest.raises(StoreUnusable, match=r"Another longloop uses the store in .*data_dir"):
        open_database(tmp_path)
    database.close()
    open_database(tmp_path).close()


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    holder = (
        "import os, pathlib, sys; from engine.database import open_database;"
        " database = open_database(pathlib.Path(sys.argv[1])); database.begin();"
        " database.put_start('r', 'me', None, 1, b'x'); database.commit(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", holder, str(tmp_path)], check=False).returncode == -9
    database = open_database(tmp_path)
    assert database.load("r", "me") is not None
    database.close()


def test_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    raw = sqlite3.connect(tmp_path / FILE_NAME)
    raw.executescript("PRAGMA user_version = 99; DROP TABLE steps")
    raw.close()
    with pytest.raises(StoreUnusable, match=r"newer longloop \(version 99"):
        open_database(tmp_path)
    raw = sqlite3.connect(tmp_path / FILE_NAME)
    assert raw.execute("PRAGMA user_version").fetchone() == (99,)
    assert raw.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'steps'").fetchone() == (0,)
    raw.close()


def test_file_that_is_no_store_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is a letter, not a database" * 100)
    with pytest.raises(StoreUnusable, match=r"cannot be used \(file is not a database\). Move it away"):
        open_database(tmp_path)


def test_folder_that_cannot_be_made_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        open_database(tmp_path / "file" / "folder")


# --- retention ---------------------------------------------------------------------------------------------------


def purge_all(database: Database, before: float, limit: int = 2) -> int:
    """Purge until there is nothing left to do. Returns how many times it took."""
    rounds = 1
    while database.purge(before, limit):
        rounds += 1
    return rounds


def test_purge_spares_what_somebody_went_on_from(database: Database) -> None:
    for number in range(5):
        database.put_start(f"old{number}", "me", f"old{number - 1}" if number else None, 10 + number, b"")
        database.put_step(f"old{number}", 0, b"")
    database.put_start("lone", "me", None, 12, b"")
    assert purge_all(database, 14) == 2
    assert database.load("lone", "me") is None
    assert len(database.load_chain("old4", "me")) == 5
    assert purge_all(database, 15) == 4  # five in pieces of two, and the look that finds nothing
    assert [database.load(f"old{number}", "me") for number in range(5)] == [None] * 5
    assert database._one("SELECT (SELECT count(*) FROM steps) + (SELECT count(*) FROM chains)") == (0,)


def test_purge_ends_when_a_whole_chain_was_deleted(database: Database) -> None:
    database.put_start("r", "me", None, 1, b"")
    database.delete("r", "me")
    assert purge_all(database, 2) == 2
    assert purge_all(database, 2) == 1


def test_space_of_what_was_purged_is_used_again(tmp_path: Path) -> None:
    database, sizes = open_database(tmp_path), set()
    for age in range(5):
        database.begin()
        for number in range(50):
            database.put_start(f"r{age}.{number}", "me", None, age, b"x" * 10_000)
        database.commit()
        database.begin()
        purge_all(database, age + 1, limit=100)
        database.commit()
        sizes.add(database._one("PRAGMA page_count"))
    database.close()
    assert len(sizes) == 1


def test_conversations_do_not_age(database: Database) -> None:
    database.put_conversation("me", Conversation("c", 1, b"{}"))
    purge_all(database, 1e12)
    assert database.get_conversation("c", "me") is not None
