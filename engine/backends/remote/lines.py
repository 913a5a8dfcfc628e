"""The connections to a service: each run has one, and one that is over leaves its own to the next.

Where the service has a page for that, a connection is made ahead of the run that will need it, so that its first turn
waits for no handshake.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from engine.backends.remote.link import Line, Link

_MAX_SPARE: Final = 32  # connections that wait for a run


class Lines:
    """To be closed when the nursery's tasks are over. warm_path: see `Line.warm`; None: nothing is made ahead."""

    def __init__(self, nursery: trio.Nursery, link: Link, warm_path: str | None) -> None:
        self._nursery = nursery
        self._link = link
        self._warm_path = warm_path
        self._all: set[Line] = set()
        self._spare: list[Line] = []
        self._prepare_next()

    def take(self) -> Line:
        """A connection for a run; what it is used for first waits until it is there."""
        line = self._spare.pop() if self._spare else self._new()
        self._prepare_next()
        return line

    def give_back(self, line: Line) -> None:
        """The run is over. A turn of it that is being cancelled still holds up the next one's."""
        if len(self._spare) < _MAX_SPARE:
            self._spare.append(line)
        else:
            self._all.discard(line)
            self._nursery.start_soon(line.aclose)

    async def aclose(self) -> None:
        """Close every connection."""
        for line in self._all:
            await line.aclose()

    def _new(self) -> Line:
        line = self._link.new_line()
        self._all.add(line)
        return line

    def _prepare_next(self) -> None:
        if self._warm_path is not None and not self._spare:
            line = self._new()
            self._spare.append(line)
            self._nursery.start_soon(line.warm, self._warm_path)


@asynccontextmanager
async def open_lines(link: Link, warm_path: str | None) -> AsyncIterator[tuple[Lines, trio.Nursery]]:
    """Connections, and a nursery for what uses them: its tasks are cancelled with the block, then the former closed."""
    lines: Lines | None = None
    try:
        async with trio.open_nursery() as nursery:
            lines = Lines(nursery, link, warm_path)
            yield lines, nursery
            nursery.cancel_scope.cancel()
    finally:
        if lines is not None:
            await lines.aclose()
