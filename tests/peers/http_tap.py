"""What passes over one HTTP/1.1 connection, read from its bytes: whole requests, events as they come, whole answers."""

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import h11

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Side = Literal["peer", "server"]
Message = tuple[Side, str, Any]


class HttpTap:
    """Both ends of a connection as h11 sees them, kept in step by giving each what the other has read.

    A message is (side, type, JSON): a request's type is its method and path, an answer's its status, an event's its
    own. What has no body has None for JSON.
    """

    def __init__(self) -> None:
        self._ends = {"peer": h11.Connection(h11.SERVER), "server": h11.Connection(h11.CLIENT)}
        self._bodies: dict[Side, _Body] = {}
        self.requests: list[h11.Request] = []
        self.is_upgraded = False

    @property
    def trailing(self) -> dict[Side, bytes]:
        """What came behind the upgrade."""
        return {"peer": self._ends["peer"].trailing_data[0], "server": self._ends["server"].trailing_data[0]}

    def see(self, side: Side, data: bytes) -> Iterator[Message]:
        """What these bytes complete. Ends early when the connection is upgraded."""
        reader, other = self._ends[side], self._ends["server" if side == "peer" else "peer"]
        reader.receive_data(data)
        while isinstance(event := reader.next_event(), h11.Event) and not isinstance(event, h11.ConnectionClosed):
            other.send(event)
            yield from self._read(side, event)
            if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                self.is_upgraded = True
                return
        if all(end.our_state is end.their_state is h11.DONE for end in self._ends.values()):
            for end in self._ends.values():
                end.start_next_cycle()

    def _read(self, side: Side, event: h11.Event) -> Iterator[Message]:
        match event:
            case h11.Request():
                self.requests.append(event)
                self._bodies[side] = _Body(f"{event.method.decode()} {event.target.decode()}", event.headers)
            case h11.Response():
                self._bodies[side] = _Body(str(event.status_code), event.headers)
            case h11.Data():
                yield from ((side, *message) for message in self._bodies[side].add(bytes(event.data)))
            case h11.EndOfMessage():
                yield from ((side, *message) for message in self._bodies.pop(side).end())


class _Body:
    """A body that grows: JSON when it is whole, or events one by one."""

    def __init__(self, name: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        found = dict(headers)
        self._name = name
        self._coding = found.get(b"content-encoding", b"identity")
        self._is_events = found.get(b"content-type", b"").startswith(b"text/event-stream")
        self._is_handshake = b"upgrade" in found
        self._data = b""

    def add(self, data: bytes) -> Iterator[tuple[str, Any]]:
        self._data += data
        while self._is_events and b"\n\n" in self._data:
            block, _, self._data = self._data.partition(b"\n\n")
            for line in block.split(b"\n"):
                if line.startswith(b"data: {"):  # a comment, the event's name and [DONE] say nothing more
                    event = json.loads(line.removeprefix(b"data: "))
                    yield event["type"], event

    def end(self) -> Iterator[tuple[str, Any]]:
        if not self._is_events and not self._is_handshake:
            unpack = {b"identity": bytes, b"gzip": gzip.decompress, b"zstd": zstd.decompress}[self._coding]
            yield self._name, json.loads(unpack(self._data)) if self._data else None
