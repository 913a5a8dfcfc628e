"""How a request's body is written: JSON or msgpack, compressed or not, and what to try when a service refuses it."""

import zlib
from typing import Any, Final

import msgspec

GZIP_LEVEL: Final = 1  # bodies are ids and text on a fast link: more effort costs more time than it saves


class Encoding(msgspec.Struct, frozen=True):
    """One way to write bodies."""

    msgpack: bool = False
    gzip: bool = False

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What the request's head says of it."""
        kind = "application/vnd.msgpack" if self.msgpack else "application/json"
        return [("Content-Type", kind), *([("Content-Encoding", "gzip")] if self.gzip else [])]

    def simpler(self) -> "Encoding | None":
        """What to try after a refusal; None for plain JSON, which has nothing simpler."""
        if self.msgpack:
            return Encoding(gzip=self.gzip)
        return PLAIN if self.gzip else None

    def encode(self, value: Any) -> bytes:
        """The whole body at once."""
        body = self.write(value)
        if not self.gzip:
            return body
        packer = zlib.compressobj(GZIP_LEVEL, wbits=31)
        return packer.compress(body) + packer.flush()

    def write(self, value: Any) -> bytes:
        """A value, not compressed."""
        return msgspec.msgpack.encode(value) if self.msgpack else msgspec.json.encode(value)


PLAIN: Final = Encoding()
