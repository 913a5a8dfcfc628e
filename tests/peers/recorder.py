"""A loopback proxy between a peer and the server that keeps every frame of both, in the order they passed.

A frame is recorded before it is passed on, so what one side did because of a frame stands after it. Nothing is
changed on the way. The frames must not be compressed, which holds as long as our server takes no extension up.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import trio
from wsproto.frame_protocol import FrameProtocol, Opcode

Side = Literal["peer", "server"]
TERMINALS: Final = ("response.done", "response.completed", "response.incomplete", "response.failed", "error")


@dataclass(frozen=True)
class Frame:
    """One message: on which socket (counted from 0), from which side, and its JSON."""

    socket: int
    side: Side
    body: dict[str, Any]

    @property
    def type(self) -> str:
        """The frame's `type`."""
        return str(self.body["type"])


@dataclass
class Socket:
    """One TCP connection of the peer."""

    number: int
    heads: dict[Side, bytes] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def cut(self) -> None:
        """Close it on both sides, without a closing handshake."""
        self.scope.cancel()

    @property
    def headers(self) -> dict[str, str]:
        """The peer's request headers, names in lower case."""
        lines = self.heads["peer"].decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def is_upgraded(self) -> bool:
        """Whether it became a WebSocket connection."""
        return self.heads.get("server", b"").startswith(b"HTTP/1.1 101")


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
        """The conversation in short: the peer's frames and what ended each step."""
        return [frame.type for frame in self.frames if frame.side == "peer" or frame.type in TERMINALS]

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
    """One direction of one connection: HTTP head, then frames."""

    def __init__(self, recorder: Recorder, socket: Socket, side: Side) -> None:
        self._recorder, self._socket, self._side = recorder, socket, side
        self._head = b""
        self._frames: FrameProtocol | None = None
        self._text = ""

    def see(self, data: bytes) -> None:
        if self._frames is None:
            self._head += data
            head, blank, data = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            self._socket.heads.setdefault(self._side, head)
            self._frames = FrameProtocol(client=self._side == "server", extensions=[])
        if self._is_websocket():
            self._frames.receive_bytes(data)
            for frame in self._frames.received_frames():
                self._see_frame(frame)

    def _is_websocket(self) -> bool:
        return "sec-websocket-key" in self._socket.headers

    def _see_frame(self, frame: Any) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.CONTINUATION):
            return
        self._text += frame.payload
        if frame.message_finished:
            body, self._text = json.loads(self._text), ""
            self._recorder.frames.append(Frame(self._socket.number, self._side, body))
            self._recorder.changed()
