"""What a sound WebSocket handshake is."""

import re
from typing import Final

from engine.errors import RequestError
from engine.server.exchange import Head

_KEY: Final = re.compile("[A-Za-z0-9+/]{22}==")  # 16 bytes in base64
_PARSED_HEADERS: Final = ("connection", "sec-websocket-extensions", "sec-websocket-protocol")


def check_handshake(head: Head) -> None:
    """Refuse what trio-websocket would fail on: it hangs instead of answering (RFC 6455 4.2).

    Raises RequestError with status 426 for another version, 400 for the rest.
    """
    if head.values("sec-websocket-version") != ["13"]:
        raise RequestError("Only version 13 of WebSocket is spoken here.", status=426, code="upgrade_required")
    keys = head.values("sec-websocket-key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise RequestError("The handshake needs one Sec-WebSocket-Key of 16 bytes in base64.")
    if [value.lower() for value in head.values("upgrade")] != ["websocket"]:
        raise RequestError("The handshake needs one Upgrade header that says websocket and nothing else.")
    if head.tokens("transfer-encoding") or head.tokens("content-length") not in ([], ["0"]):
        raise RequestError("A WebSocket handshake has no body.")
    if not all(value.isascii() for name in _PARSED_HEADERS for value in head.values(name)):
        raise RequestError("The handshake's headers must be ASCII.")
