"""A loopback proxy between a peer and the server that keeps every frame of both, in the order they passed.

Over HTTP a frame is a whole request, an event or a whole answer. A frame is recorded before it is passed on, so what
one side did because of a frame stands after it. Nothing is changed on the way. The frames must not be compressed,
which holds as long as our server takes no extension up.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from wsproto.frame_protocol import FrameProtocol, Opcode

from tests.peers.http_tap import HttpTap, Side

TERMINALS: Final = ("response.done", "response.completed", "response.incomplete", "response.failed", "error")


@dataclass(frozen=True)
class Frame:
    """One message: on which socket (counted from 0), from which side, and its JSON.

    The type of a request over HTTP is its method and path, of its answer the status.
    """

    socket: int
    side: Side
    type: str
    body: Any


@dataclass
class Socket:
    """One TCP connection of the peer."""

    number: int
    http: HttpTap = field(default_factory=HttpTap)
    ended: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def cut(self) -> None:
        """Close it on both sides, without a closing handshake."""
        self.scope.cancel()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the peer's first request, names in lower case."""
        return {name.decode(): value.decode("latin-1") for name, value in self.http.requests[0].headers}

    @property
    def is_upgraded(self) -> bool:
        """Whether it became a WebSocket connection."""
        return self.http.is_upgraded


class Recorder:
    """All that passed. `url` is the base URL for the peer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sockets: list[Socket] = []
        self.frames: list[Frame] = []
        self._changed = trio.Event()

    def sent(self, *types: str) -> list[Frame]:
        """The peer's frames, or those of some types."""
        return [frame for frame in self.frames if frame.side == "peer" and (not types or frame.type in types)]

    def received(self, *types: str) -> list[Frame]:
        """The server's frames, or those of some types."""
        return [frame for frame in self.frames if frame.side == "server" and (not types or frame.type in types)]

    def outline(self) -> list[str]:
        """The conversation in short: the peer's frames, and what ended each step or answered a request."""
        return [
            frame.type
            for frame in self.frames
            if frame.side == "peer" or frame.type in TERMINALS or frame.type.isdigit()
        ]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; it is asked again after every frame and every end of a socket."""
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()

    def changed(self) -> None:
        """Something was recorded."""
        self._changed.set()


@asynccontextmanager
async def open_recorder(port: int) -> AsyncIterator[Recorder]:
    """A recorder in front of the server at `port`; leaving the block cuts what is still connected."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    recorder = Recorder(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1")

    async def carry(stream: trio.SocketStream) -> None:
        socket = Socket(len(recorder.sockets))
        recorder.sockets.append(socket)
        with socket.scope:
            async with await trio.open_tcp_stream("127.0.0.1", port) as upstream, trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, stream, upstream, _Tap(recorder, socket, "peer"))
                nursery.start_soon(_pass_on, upstream, stream, _Tap(recorder, socket, "server"))
        socket.ended.set()
        recorder.changed()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, carry, listeners)
        yield recorder
        nursery.cancel_scope.cancel()


async def _pass_on(source: trio.SocketStream, target: trio.SocketStream, tap: "_Tap") -> None:
    """Move bytes until their end, which is passed on as well. A reset is an end too."""
    try:
        async for data in source:
            tap.see(data)
            await target.send_all(data)
        await target.send_eof()
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(target)
        await trio.aclose_forcefully(source)
    except trio.ClosedResourceError:
        pass


class _Tap:
    """One direction of one connection: HTTP, which may turn into frames."""

    def __init__(self, recorder: Recorder, socket: Socket, side: Side) -> None:
        self._recorder, self._socket, self._side = recorder, socket, side
        self._frames: FrameProtocol | None = None
        self._text = ""

    def see(self, data: bytes) -> None:
        http = self._socket.http
        if not http.is_upgraded:
            for side, type_, body in http.see(self._side, data):
                self._record(side, type_, body)
            data = http.trailing[self._side]
        if http.is_upgraded:
            self._see_frames(data)

    def _see_frames(self, data: bytes) -> None:
        if self._frames is None:
            self._frames = FrameProtocol(client=self._side == "server", extensions=[])
        self._frames.receive_bytes(data)
        for frame in self._frames.received_frames():
            if frame.opcode in (Opcode.TEXT, Opcode.CONTINUATION):
                self._text += frame.payload
                if frame.message_finished:
                    body, self._text = json.loads(self._text), ""
                    self._record(self._side, body["type"], body)

    def _record(self, side: Side, type_: str, body: Any) -> None:
        self._recorder.frames.append(Frame(self._socket.number, side, type_, body))
        self._recorder.changed()
