"""The index of the folders that may be searched: one SQLite file with full-text search, made by `longloop index`.

Blocking, for one thread at a time. Who indexes and who searches may be different processes: SQLite's write-ahead log
lets readers read on. A file whose size and time have not changed is not read again.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec

from engine.encodable import encodable
from engine.errors import EngineError
from engine.hosted.file_filters import Attributes
from engine.hosted.page_text import text_of_page
from engine.hosted.passages import match_expression, passages
from engine.schema import NewerSchema, make_schema

FILE_NAME: Final = "files.sqlite3"
MAX_FILE_BYTES: Final = 20 << 20
_VERSION: Final = 1
_BUSY_S: Final = 10.0
_FILES_PER_COMMIT: Final = 100
_STEPS_PER_LOOK: Final = 10_000  # of SQLite's machine, some milliseconds
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "__pycache__"})
_HTML: Final = frozenset({".html", ".htm", ".xhtml"})
_PATH_WEIGHT: Final = 0.5  # of a word in a file's path, next to one in its text

_SCHEMA: Final = """
CREATE TABLE folders (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, path TEXT NOT NULL);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, folder_id INTEGER NOT NULL, path TEXT NOT NULL, mtime_ns INTEGER NOT NULL,
    size INTEGER NOT NULL, UNIQUE (folder_id, path)
);
CREATE TABLE places (passage_id INTEGER PRIMARY KEY, file_id INTEGER NOT NULL);
CREATE INDEX places_by_file ON places (file_id);
CREATE VIRTUAL TABLE passages USING fts5 (text, path, tokenize = 'porter unicode61 remove_diacritics 2');
"""


class IndexUnusable(EngineError):
    """The index cannot be used; the message is for the user."""


class SearchTooSlow(EngineError):
    """A search took longer than it may."""


class Hit(msgspec.Struct, frozen=True):
    """A passage that was found. score: from 0 to 1, in relation to the best one."""

    file_id: str
    path: str
    text: str
    score: float
    attributes: dict[str, str | int]


class Indexed(msgspec.Struct):
    """What indexing a folder did, in files. `skipped` are no text, or too large."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: int = 0


class FolderOfIndex(msgspec.Struct, frozen=True):
    """A folder that may be searched, and how much is known of it."""

    name: str
    path: str
    num_files: int
    num_passages: int


class FileIndex:
    """An open index. Everything may raise sqlite3.Error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @classmethod
    @contextmanager
    def open(cls, data_dir: Path) -> Iterator[Self]:
        """The index in this folder, which is made if need be. Raises IndexUnusable."""
        file = data_dir / FILE_NAME
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            with closing(sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None)) as db:
                _prepare(db, file)
                yield cls(db)
        except (OSError, sqlite3.Error) as error:
            raise IndexUnusable(f"The index {file} cannot be used ({error}).") from error

    def folders(self) -> list[FolderOfIndex]:
        """All that may be searched, by name."""
        rows = self._db.execute(
            "SELECT name, path, (SELECT count(*) FROM files WHERE folder_id = folders.id), (SELECT count(*) FROM places"
            " JOIN files ON files.id = file_id WHERE folder_id = folders.id) FROM folders ORDER BY name"
        )
        return [FolderOfIndex(*row) for row in rows]

    # --- indexing ---

    def add_folder(self, name: str, folder: Path, report: Callable[[int, int], None]) -> Indexed:
        """Bring what is known of a folder up to date. report: files done, and of how many.

        Raises IndexUnusable for a name that is another folder's.
        """
        path = _utf8(folder.resolve())
        self._db.execute("INSERT OR IGNORE INTO folders (name, path) VALUES (?, ?)", (name, path))
        folder_id, known = self._db.execute("SELECT id, path FROM folders WHERE name = ?", (name,)).fetchone()
        if known != path:
            raise IndexUnusable(f"'{name}' is the index of {known}. Choose another with --name, or remove that one.")
        files = sorted(_files(folder))
        before = {row[0]: row[1:] for row in self._db.execute(_OF_FOLDER, (folder_id,))}
        done = Indexed()
        for number, batch in enumerate(_batches(files)):
            with self._transaction():
                for place, file in enumerate(batch):
                    self._add_file(folder_id, _utf8(file.relative_to(folder)), file, before, done)
                    report(number * _FILES_PER_COMMIT + place + 1, len(files))
        with self._transaction():  # what is left of those before is not there any more, or is no text
            for file_id, *_ in before.values():
                self._forget(file_id)
                done.removed += 1
        return done

    def remove_folder(self, name: str) -> bool:
        """Forget a folder. False when there is none of this name."""
        row = self._db.execute("SELECT id FROM folders WHERE name = ?", (name,)).fetchone()
        if row is None:
            return False
        with self._transaction():
            for (file_id,) in self._db.execute("SELECT id FROM files WHERE folder_id = ?", row).fetchall():
                self._forget(file_id)
            self._db.execute("DELETE FROM folders WHERE id = ?", row)
        return True

    def _add_file(
        self, folder_id: int, path: str, file: Path, before: dict[str, tuple[int, int, int]], done: Indexed
    ) -> None:
        try:
            status = file.stat()
            file_id, *known = before.get(path, (None,))
            if known == [status.st_mtime_ns, status.st_size]:
                done.unchanged += 1
                del before[path]
                return
            text = None if status.st_size > MAX_FILE_BYTES else _text_of(file)
        except OSError:  # gone, or not ours to read
            text = None
        if text is None:
            done.skipped += 1
            return
        if file_id is None:
            done.added += 1
        else:
            done.changed += 1
            del before[path]
            self._forget(file_id)
        values = (file_id, folder_id, path, status.st_mtime_ns, status.st_size)
        file_id = self._db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", values).lastrowid
        for passage in passages(encodable(text)):
            row = self._db.execute("INSERT INTO passages (text, path) VALUES (?, ?)", (passage, path))
            self._db.execute("INSERT INTO places VALUES (?, ?)", (row.lastrowid, file_id))

    def _forget(self, file_id: int) -> None:
        ids = self._db.execute("SELECT passage_id FROM places WHERE file_id = ?", (file_id,)).fetchall()
        self._db.executemany("DELETE FROM passages WHERE rowid = ?", ids)
        self._db.execute("DELETE FROM places WHERE file_id = ?", (file_id,))
        self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # --- searching ---

    def search(
        self,
        names: Sequence[str],
        queries: Iterable[str],
        max_hits: int,
        passes: Callable[[Attributes], bool] | None = None,
        max_s: float = 10.0,
    ) -> list[Hit]:
        """The best passages of these folders that have words of the queries, best first. passes: judges a file.

        Raises SearchTooSlow when it takes longer than `max_s`.
        """
        expression = match_expression(queries)
        if expression is None:
            return []
        deadline = time.monotonic() + max_s
        self._db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_LOOK)
        self._db.create_function("passes", 3, lambda *row: passes is None or passes(_attributes(*row)))
        try:
            rows = self._db.execute(
                _SEARCH.format(names=", ".join("?" * len(names))), (expression, *names, max_hits)
            ).fetchall()
        except sqlite3.OperationalError as error:
            if time.monotonic() > deadline:
                raise SearchTooSlow(f"The search took longer than {max_s:g} s.") from error
            raise
        finally:
            self._db.set_progress_handler(None, 0)
        best = max((-row[-1] for row in rows), default=0) or 1
        return [
            Hit(f"file-{file_id}", path, text, round(-rank / best, 4), _attributes(path, size, mtime_ns))
            for file_id, path, size, mtime_ns, text, rank in rows
        ]


_OF_FOLDER: Final = "SELECT path, id, mtime_ns, size FROM files WHERE folder_id = ?"
_SEARCH: Final = f"""
SELECT files.id, files.path, files.size, files.mtime_ns, passages.text, bm25(passages, 1.0, {_PATH_WEIGHT}) AS rank
FROM passages JOIN places ON passage_id = passages.rowid JOIN files ON files.id = file_id
JOIN folders ON folders.id = folder_id
WHERE passages MATCH ? AND folders.name IN ({{names}}) AND passes(files.path, files.size, files.mtime_ns)
ORDER BY rank LIMIT ?
"""


def _prepare(db: sqlite3.Connection, file: Path) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return
    try:
        make_schema(db, _VERSION, _SCHEMA, begin="BEGIN EXCLUSIVE")
    except NewerSchema as error:
        raise IndexUnusable(f"The index {file} {error}") from error


def _files(folder: Path) -> Iterator[Path]:
    """All files below, but hidden ones and what programs keep for themselves. Links are not followed."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS]
        for name in files:
            file = Path(parent, name)
            if not name.startswith(".") and file.is_file() and not file.is_symlink():
                yield file


def _utf8(path: Path) -> str:
    """A path as it is shown; names that are no UTF-8 have their bytes written out, which keeps them apart."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _batches(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    for start in range(0, len(files), _FILES_PER_COMMIT):
        yield files[start : start + _FILES_PER_COMMIT]


def _text_of(file: Path) -> str | None:
    """The file's text; None for one that has none, in UTF-8 or as HTML."""
    body = file.read_bytes()
    if b"\0" in body:
        return None
    if file.suffix.lower() in _HTML:
        page = text_of_page(body, "text/html", None, "")
        return None if page is None else f"{page.title}\n\n{page.text}"
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _attributes(path: str, size: int, mtime_ns: int) -> dict[str, str | int]:
    file = Path(path)
    modified = mtime_ns // 1_000_000_000
    return {"path": path, "name": file.name, "extension": file.suffix, "size": size, "modified": modified}
