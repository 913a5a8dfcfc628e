"""Writes what happens on a connection's lanes: the one task that sends on its WebSocket."""

from collections.abc import Callable
from typing import Any

import trio

from engine.live import Cursor, is_terminal
from engine.outgoing import EventForm, with_lane
from engine.server.frame_stream import FrameStream
from engine.server.lanes import Lanes
from engine.settings import Settings

_FIRST_BATCH = 2  # events in the first segment after a rest, so that the first does not wait for the others' encoding
_BATCH = 16  # events of one lane before the next lane's turn, and in one segment; guessed, not measured


class LaneWriter:
    """Sends events, and frames that others put into the stream, in segments."""

    __slots__ = ("_check_open", "_on_terminal", "_settings", "_stream", "_wake", "_written")  # one for every connection

    def __init__(
        self,
        stream: FrameStream,
        settings: Settings,
        check_open: Callable[[], None],
        on_terminal: Callable[[str | None, Any], None],
    ) -> None:
        """Callbacks, for the WebSocket's state and what terminals lead to.

        check_open: raises when the WebSocket is closed, after which nothing may be sent. on_terminal: is to put a
        lane's terminal event into the stream, and do what follows from it.
        """
        self._stream = stream
        self._settings = settings
        self._check_open = check_open
        self._on_terminal = on_terminal
        self._wake = trio.Event()
        self._written: trio.Event | None = None  # there when somebody waits for nothing to be left

    def wake(self) -> None:
        """There may be something to write."""
        self._wake.set()

    def put_first(self, stream_id: str | None, cursor: Cursor) -> None:
        """Put the next events of this lane before whatever is put next."""
        self._put_events(stream_id, cursor, _FIRST_BATCH)

    async def wait_written(self) -> None:
        """Wait until nothing is left to write."""
        self._written = trio.Event()
        self._wake.set()
        await self._written.wait()

    async def run(self, lanes: Lanes) -> None:
        """Write for ever. Raises what `check_open` does, and TooSlowError for a peer that does not read."""
        limit = _FIRST_BATCH
        while True:
            self._wake = trio.Event()
            # Up to `limit` events of each lane in a segment, behind what others have put there.
            for stream_id, cursor in lanes.cursors():
                self._put_events(stream_id, cursor, limit)
            if self._stream.has_frames:
                limit = _BATCH
                await self._flush()
                continue
            limit = _FIRST_BATCH
            if self._written is not None:
                self._written.set()
            await self._wake.wait()
            if self._stream.has_frames:
                # A turn of the scheduler, about 10 µs: the first event of a step that starts at once then shares its
                # segment with the acknowledgement, which saves a system call and a wake-up each side.
                await trio.lowlevel.checkpoint()

    def _put_events(self, stream_id: str | None, cursor: Cursor, limit: int) -> None:
        form = EventForm(self._settings.event_names, cursor.live.response.request.wants_padding)
        for event in cursor.read_nowait(limit):
            if is_terminal(event):
                self._on_terminal(stream_id, event)
            else:
                self._stream.put_text(with_lane(form.encode(event), stream_id))

    async def _flush(self) -> None:
        self._check_open()
        with trio.move_on_after(self._settings.send_timeout_s) as patience:
            await self._stream.flush()
        if patience.cancelled_caught:
            raise trio.TooSlowError
