"""Ids of everything that clients can name."""

import secrets


def mint_id(prefix: str) -> str:
    """A new id, unguessable: 96 random bits."""
    return f"{prefix}_{secrets.token_hex(12)}"
