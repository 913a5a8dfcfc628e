"""How long WebSocket connections last: until the server stops, one is too old, or its peer is silent.

A peer is alive when it sends anything, a pong or not. While one of its runs is paused it may be silent: clients of the
prototype read, and so answer pings, only when they wait for events. One task beats for all connections: a task for
each would be 3 kB of memory for every paused run.
"""

import heapq
import math
from collections.abc import Callable
from enum import Enum
from itertools import count

import trio

from engine.server.frame_stream import FrameStream
from engine.settings import Settings


class Ending(Enum):
    """Why a connection has to end."""

    STOPPING = "the server stops"
    TOO_OLD = "websocket_connection_limit_reached"
    SILENT = "no pong"


class Pulse:
    """One connection's pings and its end. A pure machine: `beat` is to be called whenever it is `due`."""

    __slots__ = (  # one for every connection
        *("_could_be_silent", "_ends_at", "_may_be_silent", "_on_end", "_pinged_at", "_settings", "_stream"),
        *("_wake_writer", "due"),
    )

    def __init__(
        self,
        stream: FrameStream,
        wake_writer: Callable[[], None],
        may_be_silent: Callable[[], bool],
        on_end: Callable[[Ending], None],
        settings: Settings,
        now: float,
    ) -> None:
        """on_end: is called once, with the reason why the connection has to end."""
        self._stream = stream
        self._wake_writer = wake_writer
        self._may_be_silent = may_be_silent
        self._on_end = on_end
        self._settings = settings
        self._ends_at = now + settings.connection_age_s
        self._pinged_at: float | None = None
        self._could_be_silent = False
        self.due = 0.0
        self._wait(now, settings.ping_every_s)

    def beat(self, now: float) -> None:
        """Do what is due: ping, look whether the last ping was answered, or end."""
        every_s, pong_s = self._settings.ping_every_s, self._settings.pong_timeout_s
        if now >= self._ends_at:
            self.end(Ending.TOO_OLD)
        elif self._pinged_at is None:
            self._pinged_at, self._could_be_silent = now, self._may_be_silent()
            self._stream.put_ping()
            self._wake_writer()
            self._wait(now, pong_s)
        elif self._stream.heard_at < self._pinged_at and not (self._could_be_silent or self._may_be_silent()):
            self.end(Ending.SILENT)
        else:
            self._pinged_at = None
            self._wait(now, every_s - pong_s)

    def end(self, ending: Ending) -> None:
        """The connection has to end. A second call changes nothing."""
        if self.due < math.inf:
            self.due = math.inf
            self._on_end(ending)

    def _wait(self, now: float, seconds: float) -> None:
        self.due = min(now + seconds, self._ends_at)


class Heart:
    """Beats for every connection of a server."""

    def __init__(self) -> None:
        self._pulses: dict[int, Pulse] = {}
        self._queue: list[tuple[float, int]] = []  # when, and whose; entries of connections that are gone just run out
        self._numbers = count()
        self._earlier = trio.Event()
        self._is_stopped = False

    def add(self, pulse: Pulse) -> int:
        """Beat for this connection until `discard` is called with the number."""
        number = next(self._numbers)
        self._pulses[number] = pulse
        if self._is_stopped:
            pulse.end(Ending.STOPPING)
        self._put(number, pulse)
        return number

    def discard(self, number: int) -> None:
        """The connection is over."""
        del self._pulses[number]

    def stop(self) -> None:
        """The server stops: every connection has to end, and so has each that comes."""
        self._is_stopped = True
        for pulse in list(self._pulses.values()):
            pulse.end(Ending.STOPPING)

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            self._beat(trio.current_time())
            self._earlier = trio.Event()
            with trio.move_on_at(self._queue[0][0] if self._queue else math.inf):
                await self._earlier.wait()

    def _beat(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            _, number = heapq.heappop(self._queue)
            if pulse := self._pulses.get(number):
                pulse.beat(now)
                self._put(number, pulse)

    def _put(self, number: int, pulse: Pulse) -> None:
        if pulse.due < math.inf:
            heapq.heappush(self._queue, (pulse.due, number))
            if self._queue[0][1] == number:
                self._earlier.set()
