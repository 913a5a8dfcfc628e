"""A run as an HTTP request reads it: its events as they come, or only its end.

A reader is attached for as long as it waits, so a client that leaves ends the run that it started. A visitor, which
found the run by its id, does nothing to it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from engine.events import Event, ResponseFailed
from engine.live import Live
from engine.outgoing import EventForm, type_of_event
from engine.server.sse import sse_error, sse_event

_BATCH: Final = 16  # events in one write; guessed, not measured


class Reader:
    """Batches of server-sent events up to the run's end, or just the wait for that."""

    def __init__(self, live: Live, next_seq: int, form: EventForm, *, is_visitor: bool) -> None:
        self._live = live
        self._form = form
        self._wake = trio.Event()
        self.cursor = live.attach(next_seq, self._set_awake, reads_to_end=True, is_visitor=is_visitor)

    def _set_awake(self) -> None:
        self._wake.set()

    async def _wait(self) -> None:
        self._wake = trio.Event()
        await self._wake.wait()

    async def wait_end(self) -> None:
        """Wait until the run is over."""
        while not self._live.is_over:
            await self._wait()
            self.cursor.skip()

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> Sequence[bytes]:
        """The next events, at least one. Loses nothing when it is cancelled. Raises EventsExpired, SlowReader."""
        while not self.cursor.has_more:
            if self._live.is_over:
                raise StopAsyncIteration
            await self._wait()
        return [chunk for event in self.cursor.read_nowait(_BATCH) for chunk in self._chunks(event)]

    def _chunks(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, ResponseFailed) and (failure := event.response.error):
            # Numbered as the event before it, since it is none of the run's; who goes on from there gets what follows.
            yield sse_error(failure, event.sequence_number - 1)
        data = self._form.encode(event)
        yield sse_event(type_of_event(data), data)


_PLAIN: Final = EventForm()


@contextmanager
def open_reader(
    live: Live, next_seq: int | None = None, form: EventForm = _PLAIN, *, is_visitor: bool = False
) -> Iterator[Reader]:
    """A reader of the run from event `next_seq` on, or from now on. Raises RequestError when it cannot begin there."""
    first = live.response.log.next if next_seq is None else next_seq
    reader = Reader(live, first, form, is_visitor=is_visitor)
    try:
        yield reader
    finally:
        live.detach(reader.cursor)
