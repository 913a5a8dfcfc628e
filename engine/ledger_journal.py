"""The ledger's journal: records as lines in a file, each written by one system call before anybody learns of it.

What a call has written is the kernel's: a server that is killed loses nothing of it. It is not on disk yet, and need
not be, because a thread takes the same records into the database, in groups, and waits for the disk there. A file is
removed when all of it is in the database; what is found at the start is taken in again, which changes nothing that is
there. One server at a time: the lock on `ledger.lock` is lifted by the kernel when its process ends, however it ends.
"""

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.ledger import LedgerUnusable, Record, decode_lines
from engine.ledger_database import LedgerDatabase

_MAX_BYTES: Final = 1 << 20  # some thousand records: read in a moment at the start
_NAME: Final = "ledger-{:08d}.journal"

log = logging.getLogger(__name__)


class LedgerLock:
    """Held from the moment it is made. Raises LedgerUnusable when another process holds it."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder / "ledger.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnusable(f"The ledger in {folder} cannot be opened ({error}).") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise LedgerUnusable(
                f"Another longloop uses the ledger in {folder}. Stop it, or give this one another "
                "(--set data_dir=…) or none (--set ledger=none)."
            ) from error

    def release(self) -> None:
        """Let another server have the ledger."""
        os.close(self._descriptor)


def journal_files(folder: Path) -> list[Path]:
    """The journal's files, oldest first."""
    return sorted(folder.glob("ledger-*.journal"))


def read_journal(files: list[Path]) -> tuple[list[Record], int]:
    """The whole records in them, and how many are not whole.

    A file that disappears meanwhile has been taken into the database.
    """
    records: list[Record] = []
    num_broken = 0
    for file in files:
        with suppress(FileNotFoundError):
            whole, broken = decode_lines(file.read_bytes())
            records += whole
            num_broken += broken
    return records, num_broken


def take_in(folder: Path, database: LedgerDatabase) -> None:
    """Put what the last server has left behind into the database. Raises sqlite3.Error, OSError."""
    files = journal_files(folder)
    records, num_broken = read_journal(files)
    if num_broken:  # one, if the server was killed while it wrote: then nobody has learnt of that
        log.warning("the ledger's journal has %d records, and %d that are not whole", len(records), num_broken)
    database.begin()
    try:
        for record in records:
            database.put(record)
        database.interrupt_runs()
        database.commit()
    except BaseException:
        database.rollback()
        raise
    for file in files:
        file.unlink()


class LedgerJournal:
    """The file that is written now."""

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        """The folder has no journal: see `take_in`. Raises OSError."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._number = 0
        self._num_bytes = 0
        self._is_torn = False  # the last line was not written, or not all of it
        self._descriptor = self._open(0)

    @property
    def is_failing(self) -> bool:
        """Whether what was to be written last could not be."""
        return self._is_torn

    @property
    def file(self) -> Path:
        """The file that is written now."""
        return self._file(self._number)

    def _file(self, number: int) -> Path:
        return self._folder / _NAME.format(number)

    def _open(self, number: int) -> int:
        return os.open(self._file(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, line: bytes) -> None:
        """Write a line. Raises OSError when not all of it was written."""
        self._write(b"\n" + line if self._is_torn else line)

    def mend(self) -> None:
        """End the line that is torn, when there is one. Raises OSError when that cannot be written."""
        if self._is_torn:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        self._is_torn = True
        num_written = os.write(self._descriptor, data)
        self._num_bytes += num_written
        if num_written < len(data):
            raise OSError(f"only {num_written} of {len(data)} bytes were written")
        self._is_torn = False

    def rotate(self) -> Path | None:
        """Begin another file when this one is full, and say which was. Raises OSError; this one goes on then."""
        if self._num_bytes < self._max_bytes:
            return None
        descriptor, full = self._open(self._number + 1), self.file
        os.close(self._descriptor)
        self._descriptor, self._number, self._num_bytes, self._is_torn = descriptor, self._number + 1, 0, False
        return full

    def close(self) -> None:
        """Write no more."""
        os.close(self._descriptor)
