"""Traces: a JSON line for every frame of a run, both ways, with its time.

`{"t_ms": 12.345, "dir": "send", "frame": {…}}`; `dir` is `send` or `recv`. Times count from the opening of the trace.
Frames stand as they were on the wire, byte for byte, unless they are no JSON: those stand as a string. A connection
that opens or closes leaves a line too (`dir` `open` or `close`, `frame` a reason or null). Headers are not recorded,
and so no keys.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import msgspec

Direction = Literal["send", "recv", "open", "close"]


class Line(msgspec.Struct, frozen=True):
    """A line of a trace; `frame` is the decoded frame."""

    t_ms: float
    dir: Direction
    frame: Any = None


_LINE: Final = msgspec.json.Decoder(Line)
_ENCODER: Final = msgspec.json.Encoder()


class Trace:
    """Writes lines as they happen; each is flushed, so that a crash leaves what led to it."""

    def __init__(self, file: TextIO, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._file = file
        self._clock = clock
        self._start = clock()

    def record(self, direction: Direction, frame: str | None = None) -> None:
        """Write one line; `frame` is the text of the frame, or the reason of an `open` or `close`."""
        t_ms = round((self._clock() - self._start) * 1000, 3)
        is_frame = direction in ("send", "recv")
        shown = _verbatim(frame) if is_frame and frame is not None else frame
        line = _ENCODER.encode({"t_ms": t_ms, "dir": direction, "frame": shown})
        self._file.write(line.decode() + "\n")
        self._file.flush()


def _verbatim(frame: str) -> msgspec.Raw | str:
    """The frame as JSON in its own spelling; as a string when it is none or would break the line."""
    try:
        msgspec.json.decode(frame)
    except msgspec.DecodeError:
        return frame
    return frame if "\n" in frame else msgspec.Raw(frame.encode())


@contextmanager
def open_trace(path: str | Path) -> Iterator[Trace]:
    """A trace that writes to a new file at `path`. Raises OSError."""
    with Path(path).open("w", encoding="utf-8") as file:
        yield Trace(file)


def read_trace(path: str | Path) -> list[Line]:
    """All lines of a trace. Raises msgspec.DecodeError for a file that is none."""
    return [_LINE.decode(line) for line in Path(path).read_bytes().splitlines() if line]
