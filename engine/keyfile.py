"""The file that holds the server's key: made once, readable by its owner only."""

import os
import secrets
from pathlib import Path

from engine.errors import ServerError
from engine.sealing import KEY_BYTES, new_key


class KeyFileError(ServerError):
    """The file cannot be read or written, or holds no key; the message names it."""


def load_key(file: Path) -> bytes:
    """The key in the file, which is made when there is none; several servers may start at once.

    Raises KeyFileError.
    """
    try:
        return _checked(_read_or_make(file), file)
    except OSError as error:
        raise KeyFileError(f"{file}: {error.strerror}") from error


def _read_or_make(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        _make(file)
        return file.read_bytes()


def _make(file: Path) -> None:
    """Write a key under another name and link it, which fails when somebody was quicker: nobody sees half a key."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(new_key())
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(draft, file)
        except FileExistsError:
            return
    finally:
        draft.unlink()


def _checked(key: bytes, file: Path) -> bytes:
    if len(key) != KEY_BYTES:
        raise KeyFileError(f"{file} has {len(key)} bytes where a key has {KEY_BYTES}; remove it to get a new one.")
    return key
