"""Text that only this server can read again: what a client carries for us without knowing what is in it.

A sealed text is `lls1.` and, in base64url, AES-SIV (RFC 5297) of the packed data. AES-SIV and not AES-GCM, because an
event is made again whenever somebody reads it and must then be the same to the byte: the same data gives the same text,
and no nonce can be used twice since there is none. The kind is authenticated along with the data, so that a sealed text
opens only as what it was sealed for. Nothing else is bound to it: not the response, not the client's key.
"""

import secrets
import zlib
from base64 import b64decode, urlsafe_b64encode
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from engine.errors import RequestError

KEY_BYTES: Final = 64  # two AES-256 keys
_VERSION: Final = "lls1."


def new_key() -> bytes:
    """A random key."""
    return secrets.token_bytes(KEY_BYTES)


class Sealer:
    """Seals and opens with one key. Raises ValueError for a key of another length than KEY_BYTES."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes where {KEY_BYTES} are due")
        self._cipher = AESSIV(key)

    def seal(self, kind: str, data: bytes) -> str:
        """The data as a text for clients to carry. The same data gives the same text."""
        # Packed first: a client sends it back with every request of a stateless conversation.
        sealed = self._cipher.encrypt(zlib.compress(data), [_bound(kind)])
        return _VERSION + urlsafe_b64encode(sealed).decode("ascii")

    def unseal(self, kind: str, text: str) -> bytes:
        """The data of a sealed text. Raises RequestError when this server has not sealed it as this kind."""
        if not text.startswith(_VERSION):
            raise _unreadable()
        try:
            sealed = b64decode(text.removeprefix(_VERSION).encode("ascii"), altchars=b"-_", validate=True)
            return zlib.decompress(self._cipher.decrypt(sealed, [_bound(kind)]))
        except (InvalidTag, ValueError) as error:  # not base64, not ASCII and too short are ValueErrors
            raise _unreadable() from error


def _bound(kind: str) -> bytes:
    return f"{_VERSION}{kind}".encode()


def _unreadable() -> RequestError:
    return RequestError(
        "The encrypted content could not be verified: this server has not made it, or it was changed.",
        param="encrypted_content",
        code="invalid_encrypted_content",
    )
