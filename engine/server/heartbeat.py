"""How long a WebSocket connection lasts: until the server stops, it is too old, or its peer is silent.

A peer is alive when it sends anything, a pong or not. While one of its runs is paused it may be silent: clients of the
prototype read, and so answer pings, only when they wait for events.
"""

from collections.abc import Callable
from enum import Enum

import trio

from engine.server.frame_stream import FrameStream
from engine.settings import Settings


class Ending(Enum):
    """Why a connection has to end."""

    STOPPING = "the server stops"
    TOO_OLD = "websocket_connection_limit_reached"
    SILENT = "no pong"


async def wait_end(
    stream: FrameStream,
    wake_writer: Callable[[], None],
    may_be_silent: Callable[[], bool],
    closing: trio.Event,
    settings: Settings,
) -> Ending:
    """Ping the peer until its connection has to end, and say why.

    closing: set when the server stops.
    """
    clock = _Clock(closing, trio.current_time() + settings.connection_age_s)
    every_s, pong_s = settings.ping_every_s, settings.pong_timeout_s
    until_ping_s = every_s
    while await clock.runs_for(until_ping_s):
        pinged_at, could_be_silent = trio.current_time(), may_be_silent()
        stream.put_ping()
        wake_writer()
        if not await clock.runs_for(pong_s):
            break
        if stream.heard_at < pinged_at and not (could_be_silent or may_be_silent()):
            return Ending.SILENT
        until_ping_s = every_s - pong_s
    return Ending.STOPPING if closing.is_set() else Ending.TOO_OLD


class _Clock:
    def __init__(self, closing: trio.Event, ends_at: float) -> None:
        self._closing = closing
        self._ends_at = ends_at

    async def runs_for(self, seconds: float) -> bool:
        """Wait. False as soon as the server stops or the connection is too old."""
        with trio.move_on_at(min(trio.current_time() + seconds, self._ends_at)):
            await self._closing.wait()
        return not self._closing.is_set() and trio.current_time() < self._ends_at
