"""Ids of everything that clients can name, unguessable: each has 96 random bits at least."""

import re
import secrets
from collections.abc import Callable
from typing import Final

_MADE: Final = re.compile(r"[a-z]+_([0-9a-f]{24})[0-9a-f]{16}")


def mint_id(prefix: str) -> str:
    """A new id."""
    return f"{prefix}_{secrets.token_hex(12)}"


def mint_within(response_id: str) -> Callable[[str], str]:
    """A mint for what a response makes: its ids tell which one that was, so that nobody has to write it down."""
    own = response_id.partition("_")[2]
    return lambda prefix: f"{prefix}_{own}{secrets.token_hex(8)}"


def maker_of(item_id: str) -> str | None:
    """The id of the response that an item with this id was made by; None for an id that is not ours."""
    found = _MADE.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None
