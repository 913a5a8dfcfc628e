"""The store's SQLite file: its schema and every statement, synchronous, for one thread at a time.

One file, write-ahead log, locked for this process alone: SQLite's own exclusive mode, which the kernel lifts when a
process dies, however it dies. Two servers on one file would both go on with the same paused run, so the second one is
refused. Responses that go on from one another form a chain (a tree, in truth), known by its first response; a chain
is purged as a whole, when the newest of it is old enough, because the newest needs all the others.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from engine.errors import NotFound
from engine.schema import NewerSchema, make_schema, try_to_write
from engine.store import Conversation, Order, Page, Stored, StoredItem, StoreUnusable

FILE_NAME: Final = "store.sqlite3"
DatabaseFault: Final = sqlite3.Error  # what each method here may raise
_VERSION: Final = 1
_LOCK_TIMEOUT_S: Final = 2  # a server that was just killed may still be dying

_SCHEMA: Final = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, principal TEXT NOT NULL, parent TEXT, root TEXT NOT NULL, created_at INTEGER NOT NULL,
    start BLOB NOT NULL
);
CREATE INDEX responses_by_root ON responses (root);
CREATE TABLE steps (response_id TEXT, number INTEGER, step BLOB NOT NULL, PRIMARY KEY (response_id, number));
CREATE TABLE chains (root TEXT PRIMARY KEY, used_at INTEGER NOT NULL);
CREATE INDEX chains_by_use ON chains (used_at);
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, principal TEXT NOT NULL, created_at INTEGER NOT NULL, metadata BLOB NOT NULL
);
CREATE TABLE conversation_items (
    conversation_id TEXT, position INTEGER, id TEXT NOT NULL, item BLOB NOT NULL,
    PRIMARY KEY (conversation_id, position), UNIQUE (conversation_id, id)
);
"""


def open_database(folder: Path) -> "Database":
    """The database in `folder`, which is made if need be. Raises StoreUnusable with a sentence for the user."""
    file = folder / FILE_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)  # SQLite gives its log the file's mode
        file.chmod(0o600)
        db = sqlite3.connect(file, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnusable(f"The store {file} cannot be opened ({error}).") from error
    try:
        _prepare(db, file)
    except sqlite3.Error as error:
        db.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise StoreUnusable(
                f"Another longloop uses the store in {folder}. Stop it, or give this one another "
                "(--set data_dir=…) or none (--set store=none)."
            ) from error
        raise StoreUnusable(
            f"The store {file} cannot be used ({error}). Move it away to start with a new one."
        ) from error
    except StoreUnusable:
        db.close()
        raise
    return Database(db)


def _prepare(db: sqlite3.Connection, file: Path) -> None:
    """Lock the file, and make its tables if it is new."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA cache_size = -256")  # kB: records are read once, in order, so pages kept serve nobody
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # a commit is on disk, also when the machine loses its power
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    try:
        make_schema(db, _VERSION, _SCHEMA, begin="BEGIN EXCLUSIVE")
    except NewerSchema as error:
        raise StoreUnusable(f"The store {file} {error}") from error


class Database:
    """An open store. Everything may raise sqlite3.Error; writing methods need a transaction."""

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

    # --- responses ---

    def put_start(self, response_id: str, principal: str, parent: str | None, created_at: int, start: bytes) -> None:
        row = self._one("SELECT root FROM responses WHERE id = ?", parent)
        root = row[0] if row else response_id
        self._db.execute(
            "INSERT OR IGNORE INTO responses VALUES (?, ?, ?, ?, ?, ?)",
            (response_id, principal, parent, root, created_at, start),
        )
        self._db.execute(
            "INSERT INTO chains VALUES (?, ?)"
            " ON CONFLICT (root) DO UPDATE SET used_at = max(used_at, excluded.used_at)",
            (root, created_at),
        )

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        """Only the step that is due: what follows a lost one could not be understood."""
        self._db.execute(
            "INSERT INTO steps SELECT id, :number, :step FROM responses WHERE id = :id AND :number ="
            " (SELECT coalesce(max(number) + 1, 0) FROM steps WHERE response_id = :id)",
            {"id": response_id, "number": number, "step": step},
        )

    def load(self, response_id: str, principal: str) -> Stored | None:
        row = self._one(
            "SELECT id, parent, created_at, start FROM responses WHERE id = ? AND principal = ?", response_id, principal
        )
        return self._stored(row) if row else None

    def load_chain(self, response_id: str, principal: str) -> list[Stored]:
        rows = self._db.execute(
            "WITH RECURSIVE chain (id, parent, created_at, start, depth) AS ("
            " SELECT id, parent, created_at, start, 0 FROM responses WHERE id = ? AND principal = ?"
            " UNION ALL SELECT r.id, r.parent, r.created_at, r.start, depth + 1 FROM responses r, chain"
            " WHERE r.id = chain.parent AND r.principal = ?)"
            " SELECT id, parent, created_at, start FROM chain ORDER BY depth DESC",
            (response_id, principal, principal),
        ).fetchall()
        return [self._stored(row) for row in rows]

    def starts(self) -> Iterator[tuple[str, str | None, bytes]]:
        """Id, parent and start of every response, of any principal, oldest first."""
        yield from self._db.execute("SELECT id, parent, start FROM responses ORDER BY created_at, rowid")

    def start(self, response_id: str) -> bytes | None:
        """The start of a response, of any principal."""
        row = self._one("SELECT start FROM responses WHERE id = ?", response_id)
        return row[0] if row else None

    def _stored(self, row: tuple[str, str | None, int, bytes]) -> Stored:
        response_id, parent, created_at, start = row
        rows = self._db.execute("SELECT step FROM steps WHERE response_id = ? ORDER BY number", (response_id,))
        return Stored(response_id, parent, created_at, start, [step for (step,) in rows])

    def delete(self, response_id: str, principal: str) -> bool:
        found = self._db.execute("DELETE FROM responses WHERE id = ? AND principal = ?", (response_id, principal))
        if found.rowcount:
            self._db.execute("DELETE FROM steps WHERE response_id = ?", (response_id,))
        return bool(found.rowcount)

    def purge(self, before: float, limit: int) -> bool:
        """Forget up to `limit` responses of a chain that nobody went on from since `before`. False when all is done."""
        chain = self._one("SELECT root FROM chains WHERE used_at < ? ORDER BY used_at LIMIT 1", before)
        if chain is None:
            return False
        ids = self._db.execute("SELECT id FROM responses WHERE root = ? LIMIT ?", (*chain, limit)).fetchall()
        self._db.executemany("DELETE FROM steps WHERE response_id = ?", ids)
        self._db.executemany("DELETE FROM responses WHERE id = ?", ids)
        if len(ids) < limit:
            self._db.execute("DELETE FROM chains WHERE root = ?", chain)
        return True

    # --- conversations ---

    def put_conversation(self, principal: str, conversation: Conversation) -> None:
        values = (conversation.id, principal, conversation.created_at, conversation.metadata)
        self._db.execute("INSERT OR IGNORE INTO conversations VALUES (?, ?, ?, ?)", values)

    def get_conversation(self, conversation_id: str, principal: str) -> Conversation | None:
        row = self._one(
            "SELECT id, created_at, metadata FROM conversations WHERE id = ? AND principal = ?",
            conversation_id,
            principal,
        )
        return Conversation(*row) if row else None

    def update_conversation(self, conversation_id: str, principal: str, metadata: bytes) -> Conversation | None:
        self._db.execute(
            "UPDATE conversations SET metadata = ? WHERE id = ? AND principal = ?",
            (metadata, conversation_id, principal),
        )
        return self.get_conversation(conversation_id, principal)

    def delete_conversation(self, conversation_id: str, principal: str) -> bool:
        found = self._db.execute(
            "DELETE FROM conversations WHERE id = ? AND principal = ?", (conversation_id, principal)
        )
        if found.rowcount:
            self._db.execute("DELETE FROM conversation_items WHERE conversation_id = ?", (conversation_id,))
        return bool(found.rowcount)

    def put_items(self, conversation_id: str, items: Iterable[StoredItem]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO conversation_items SELECT id,"
            " (SELECT coalesce(max(position) + 1, 0) FROM conversation_items WHERE conversation_id = :conversation),"
            " :id, :item FROM conversations WHERE id = :conversation",
            [{"conversation": conversation_id, "id": one.id, "item": one.item} for one in items],
        )

    def list_items(
        self, conversation_id: str, principal: str, limit: int, order: Order, after: str | None
    ) -> Page | None:
        if self.get_conversation(conversation_id, principal) is None:
            return None
        start: tuple[Any, ...] | None = (-1,) if order == "asc" else (1 << 62,)
        if after is not None:
            start = self._one(
                "SELECT position FROM conversation_items WHERE conversation_id = ? AND id = ?", conversation_id, after
            )
        if start is None:
            raise NotFound(f"Item with id '{after}' not found.", param="after", code="item_not_found")
        sign = "> ? ORDER BY position" if order == "asc" else "< ? ORDER BY position DESC"
        rows = self._db.execute(
            f"SELECT id, item FROM conversation_items WHERE conversation_id = ? AND position {sign} LIMIT ?",
            (conversation_id, *start, limit + 1),
        ).fetchall()
        return Page([StoredItem(*row) for row in rows[:limit]], len(rows) > limit)

    def get_item(self, conversation_id: str, principal: str, item_id: str) -> StoredItem | None:
        row = self._one(
            "SELECT i.id, i.item FROM conversation_items i JOIN conversations c ON c.id = i.conversation_id"
            " WHERE c.id = ? AND c.principal = ? AND i.id = ?",
            conversation_id,
            principal,
            item_id,
        )
        return StoredItem(*row) if row else None

    def delete_item(self, conversation_id: str, principal: str, item_id: str) -> bool:
        if self.get_item(conversation_id, principal, item_id) is None:
            return False
        values = (conversation_id, item_id)
        self._db.execute("DELETE FROM conversation_items WHERE conversation_id = ? AND id = ?", values)
        return True

    def _one(self, statement: str, *values: Any) -> Any:
        return self._db.execute(statement, values).fetchone()
