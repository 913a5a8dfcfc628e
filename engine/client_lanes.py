"""Several runs over one connection: each on a lane of its own (`stream_id`), all at the same time.

```python
async with open_lanes("http://127.0.0.1:8765") as lanes:
    async with lanes.open_run("a", input="Weather in Oslo?") as a, lanes.open_run("b", input="In Paris?") as b:
        print((await a.result()).text, (await b.result()).text)
```

The connection is made when the first run needs it, and made anew when it breaks; then every run goes on where it was.
Frames of a lane whose run nobody reads are kept in memory: the others must not wait for it.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from engine.client import Run, open_run
from engine.client_wire import Connection, ConnectionLost, Connector, WebSocketConnector, beat
from engine.trace import Trace

log = logging.getLogger(__name__)

# What the last frame may take to go out when the block is left.
FLUSH_TIMEOUT_S: Final = 2.0


@asynccontextmanager
async def open_lanes(
    url: str,
    *,
    api_key: str | None = None,
    connect_timeout_s: float = 10,
    trace: Trace | None = None,
    connector: Connector | None = None,
) -> AsyncIterator["Lanes"]:
    """Lanes on the server at `url`; leaving the block closes their connection.

    trace: gets every frame of the connection. connector: replaces the dialling of `url`. Raises ValueError for a bad
    URL.
    """
    wire = connector or WebSocketConnector(url, api_key=api_key, connect_timeout_s=connect_timeout_s, trace=trace)
    held: Exception | None = None
    async with trio.open_nursery() as nursery:
        lanes = Lanes(url, wire, nursery)
        try:
            yield lanes
        except Exception as error:
            held = error
        await lanes.flush()
        nursery.cancel_scope.cancel()
    if held is not None:
        raise held


class Lanes:
    """The lanes of one connection. Made by `open_lanes`."""

    def __init__(self, url: str, connector: Connector, nursery: trio.Nursery) -> None:
        self._url = url
        self._connector = connector
        self._nursery = nursery
        self._dialling = trio.Lock()
        self._shared: _Shared | None = None
        self._in_use: set[str] = set()

    @asynccontextmanager
    async def open_run(self, stream_id: str, **options: Any) -> AsyncIterator[Run]:
        """A run on this lane; `options` are those of `open_run` that do not concern the connection.

        Raises ValueError while another run is on this lane, and what `open_run` raises.
        """
        if stream_id in self._in_use:
            raise ValueError(f"lane {stream_id} has a run")
        self._in_use.add(stream_id)
        try:
            async with open_run(
                self._url, stream_id=stream_id, connector=_LaneConnector(self, stream_id), **options
            ) as run:
                yield run
        finally:
            self._in_use.remove(stream_id)

    async def join(self, stream_id: str) -> "_LaneConnection":
        """A lane of the connection there is, or of a new one. Raises what connecting raises."""
        async with self._dialling:
            if self._shared is None or self._shared.loss is not None:
                self._shared = await self._nursery.start(self._hold)
        return _LaneConnection(self._shared, stream_id)

    async def flush(self) -> None:
        """Let the frame that is being sent go out."""
        if self._shared is not None:
            with trio.move_on_after(FLUSH_TIMEOUT_S):
                await self._shared.flush()

    async def _hold(self, task_status: trio.TaskStatus["_Shared"]) -> None:
        """One connection, until it breaks."""
        async with self._connector.open() as connection:
            shared = _Shared(connection)
            task_status.started(shared)
            await shared.carry()


class _LaneConnector:
    """A Connector whose connections are one lane of a shared one."""

    def __init__(self, lanes: Lanes, stream_id: str) -> None:
        self._lanes = lanes
        self._stream_id = stream_id

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Connection]:
        """The lane, until the block is left. A run that gives up the connection gives it up for all."""
        connection = await self._lanes.join(self._stream_id)
        try:
            yield connection
        except ConnectionLost as error:
            connection.give_up(error)
            raise
        finally:
            connection.leave()


class _Shared:
    """A connection that several lanes send on and receive from; `loss` says why it is no more."""

    def __init__(self, connection: Connection) -> None:
        self.loss: ConnectionLost | None = None
        self._connection = connection
        self._inboxes: dict[str, trio.MemorySendChannel[str]] = {}
        # Nothing is kept between a lane and the writer, so a send that is cancelled has not been taken.
        self.outbox, self._to_send = trio.open_memory_channel[str](0)
        self._given_up = trio.Event()
        self._is_sending = trio.Lock()

    def enter(self, stream_id: str) -> trio.MemoryReceiveChannel[str]:
        """The frames of a lane from now on."""
        self._inboxes[stream_id], frames = trio.open_memory_channel[str](math.inf)
        return frames

    def leave(self, stream_id: str) -> None:
        """Frames of this lane mean nothing any more."""
        self._inboxes.pop(stream_id).close()

    def lose(self, loss: ConnectionLost) -> None:
        """The connection is no more, for all of its lanes."""
        if self.loss is None:
            self.loss = loss
            self._given_up.set()
            self._to_send.close()
            for inbox in self._inboxes.values():
                inbox.close()

    async def flush(self) -> None:
        """Wait until nothing is being sent."""
        await trio.lowlevel.checkpoint()  # a frame that was handed over may not have been taken up yet
        async with self._is_sending:
            pass

    async def carry(self) -> None:
        """Carry frames until the connection breaks, or is given up."""
        async with trio.open_nursery() as nursery:
            for work in (self._read, self._write, self._beat):
                nursery.start_soon(self._until_lost, work)
            await self._given_up.wait()
            nursery.cancel_scope.cancel()

    async def _until_lost(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except ConnectionLost as error:
            self.lose(error)
        except Exception as error:
            # Whatever the WebSocket library or the network came up with: another connection may do better.
            log.exception("connection failed")
            self.lose(ConnectionLost(f"connection failed: {error}"))

    async def _read(self) -> None:
        while True:
            text = await self._connection.receive()
            inbox = self._inboxes.get(_lane_of(text) or "")
            if inbox is not None:
                inbox.send_nowait(text)

    async def _write(self) -> None:
        async for text in self._to_send:
            async with self._is_sending:
                await self._connection.send(text)

    async def _beat(self) -> None:
        await beat(self._connection)


class _LaneConnection:
    """One lane of a shared connection, as a Connection."""

    def __init__(self, shared: _Shared, stream_id: str) -> None:
        self._shared = shared
        self._stream_id = stream_id
        self._frames = shared.enter(stream_id)

    async def send(self, text: str) -> None:
        try:
            await self._shared.outbox.send(text)
        except trio.BrokenResourceError as error:
            raise self._lost() from error

    async def receive(self) -> str:
        try:
            return await self._frames.receive()
        except trio.EndOfChannel as error:
            raise self._lost() from error

    async def ping(self) -> None:
        # The shared connection has a heartbeat of its own.
        await trio.lowlevel.checkpoint()

    def give_up(self, loss: ConnectionLost) -> None:
        """The run found the connection broken."""
        self._shared.lose(loss)

    def leave(self) -> None:
        """The run needs the lane no more."""
        self._shared.leave(self._stream_id)
        self._frames.close()

    def _lost(self) -> ConnectionLost:
        loss = self._shared.loss
        return ConnectionLost(loss.message, code=loss.code) if loss else ConnectionLost("connection closed")


class _OnLane(msgspec.Struct):
    stream_id: str | None = None


_ON_LANE: Final = msgspec.json.Decoder(_OnLane)


def _lane_of(text: str) -> str | None:
    """The lane of a frame. Raises ConnectionLost for one that is none."""
    try:
        return _ON_LANE.decode(text).stream_id
    except msgspec.DecodeError as error:
        raise ConnectionLost(f"the server sent a frame that is not JSON: {error}") from error
