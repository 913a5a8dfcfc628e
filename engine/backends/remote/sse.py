"""Bytes of a `text/event-stream` to the data of its events, whatever the cuts between the bytes."""

from codecs import BOM_UTF8

from engine.backends.remote.errors import BrokenStream

__all__ = ["EventReader"]


class EventReader:
    """Only `data` counts: neither API gives its events names or ids. What no empty line has ended is no event."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = b""  # the line that has not ended
        self._is_first = True  # line
        self._data: list[bytes] = []  # of the event that has not ended
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete. Raises BrokenStream for one that is too large."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if self._is_first:
                self._is_first, line = False, line.removeprefix(BOM_UTF8)
            if line.startswith(b"data:"):
                self._data.append(line[5:].lstrip(b" "))
                self._size += len(line)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > self._max_event_bytes:
            raise BrokenStream(f"an event of more than {self._max_event_bytes} bytes")
        return events
