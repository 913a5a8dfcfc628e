"""The client's side of the wire: where to connect, a connection as text frames, and what can go wrong with it.

The only user of trio-websocket on the client's side. `Connector` is the seam: `WebSocketConnector` dials a URL, tests
put both ends of a memory stream there.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import trio
import trio_websocket

from engine.errors import EngineError
from engine.trace import Trace

MAX_FRAME_BYTES: Final = 64 << 20
RECEIVE_BUFFER_BYTES: Final = 64 << 10
CLOSE_TIMEOUT_S: Final = 2.0
PING_EVERY_S: Final = 20.0
PONG_TIMEOUT_S: Final = 20.0


class RunFailed(EngineError):
    """The server refused or gave up the run; `status`, `code`, `message` and `param` are the server's own."""


class ConnectionLost(EngineError):
    """The connection broke, and reconnecting as often as allowed did not help (or was not allowed)."""

    status = 503
    code = "connection_lost"
    kind = "connection_error"


class NoServer(ConnectionLost):
    """Nobody listens at the URL, or there is no such host: at a run's start, waiting for it would only hide a typo."""


class Event(dict[str, Any]):
    """A server event: the JSON object of its frame, whose fields are attributes too (`event.item.name`).

    A field that is missing raises AttributeError as attribute and KeyError as key; `event.get("delta")` asks.
    Fields of unknown event types are there like all others, so a newer server loses nothing.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"{self.get('type', 'object')} has no field '{name}'") from None
        return _attributed(value)


def _attributed(value: Any) -> Any:
    if isinstance(value, dict):
        return Event(value)
    return [_attributed(entry) for entry in value] if isinstance(value, list) else value


def decode_event(text: str) -> Event:
    """The event in a frame. Raises ConnectionLost for a frame that is no JSON object with a `type`."""
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConnectionLost(f"the server sent a frame that is not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ConnectionLost("the server sent a frame that is no event")
    return Event(data)


def endpoint_url(url: str) -> str:
    """The WebSocket URL of the append lifecycle at a server: `http` or `ws`, with or without path and query.

    Raises ValueError for something that is no such URL, or names another lifecycle.
    """
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.netloc:
        raise ValueError(f"not a server's URL: {url!r}; write for example http://127.0.0.1:8765")
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        path = (path or "/v1") + "/responses"
    query = dict(parse_qsl(parts.query))
    if query.setdefault("lifecycle", "append") != "append":
        raise ValueError(f"longloop's own client speaks the append lifecycle, not {query['lifecycle']!r}: {url!r}")
    return urlunsplit((scheme, parts.netloc, path, urlencode(query), ""))


# --- connections -------------------------------------------------------------------------------------------------


class Connection(Protocol):
    """One connection. Both methods raise ConnectionLost when it is gone; one task sends, one receives."""

    async def send(self, text: str) -> None:
        """Send one frame. A cancelled send leaves the connection unusable."""

    async def receive(self) -> str:
        """The next frame."""

    async def ping(self) -> None:
        """Return when the peer has answered a ping."""


class Connector(Protocol):
    """Makes connections to one server, one after the other."""

    def open(self) -> AbstractAsyncContextManager[Connection]:
        """A new connection. Raises ConnectionLost, or RunFailed when the server refuses for good."""


async def beat(connection: Connection) -> None:
    """Ping the peer until cancelled. Raises ConnectionLost when it vanished without a word."""
    while True:
        await trio.sleep(PING_EVERY_S)
        with trio.move_on_after(PONG_TIMEOUT_S) as scope:
            await connection.ping()
        if scope.cancelled_caught:
            raise ConnectionLost(f"the server has not answered a ping for {PONG_TIMEOUT_S:g} s")


class WebSocketFrames:
    """A Connection over trio-websocket's; its frames go to the trace, if there is one."""

    def __init__(self, websocket: Any, trace: Trace | None = None) -> None:
        self._websocket = websocket
        self._trace = trace

    async def send(self, text: str) -> None:
        if self._trace:
            self._trace.record("send", text)
        try:
            await self._websocket.send_message(text)
        except trio_websocket.ConnectionClosed as error:
            raise _lost(error) from error

    async def receive(self) -> str:
        try:
            text = await self._websocket.get_message()
        except trio_websocket.ConnectionClosed as error:
            raise _lost(error) from error
        if not isinstance(text, str):
            raise ConnectionLost("the server sent a binary frame")
        if self._trace:
            self._trace.record("recv", text)
        return text

    async def ping(self) -> None:
        try:
            await self._websocket.ping()
        except trio_websocket.ConnectionClosed as error:
            raise _lost(error) from error


class WebSocketConnector:
    """Dials a URL over TCP or TLS."""

    def __init__(
        self, url: str, *, api_key: str | None = None, connect_timeout_s: float = 10, trace: Trace | None = None
    ) -> None:
        self.url = endpoint_url(url)
        self._parts = urlsplit(self.url)
        self._headers = [(b"Authorization", f"Bearer {api_key}".encode())] if api_key else []
        self._connect_timeout_s = connect_timeout_s
        self._trace = trace

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Connection]:
        """A new connection; closed at the end, for which the server gets two seconds."""
        held: Exception | None = None
        stream = await self._dial()
        try:
            async with stream, trio.open_nursery() as nursery:
                websocket = await self._shake_hands(nursery, stream)
                try:
                    with traced(self._trace, self.url):
                        yield WebSocketFrames(websocket, self._trace)
                except Exception as error:
                    held = error
                with trio.move_on_after(CLOSE_TIMEOUT_S):
                    await websocket.aclose()
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            # Groups with Cancelled or KeyboardInterrupt in them pass; they are no errors.
            if held is None:
                raise self._translated(group) from group
        if held is not None:
            raise held

    # Not trio_websocket.open_websocket_url: it leaves the socket open when the handshake fails (0.12.2).
    async def _dial(self) -> trio.abc.Stream:
        host, port = self._parts.hostname or "", self._parts.port
        try:
            with trio.fail_after(self._connect_timeout_s):
                if self._parts.scheme == "ws":
                    return await trio.open_tcp_stream(host, port or 80)
                return await trio.open_ssl_over_tcp_stream(host, port or 443, https_compatible=True)
        except trio.TooSlowError as error:
            raise self._too_slow() from error
        except OSError as error:
            raise NoServer(f"cannot connect to {self.url}: {error}") from error

    async def _shake_hands(self, nursery: trio.Nursery, stream: trio.abc.Stream) -> Any:
        with trio.fail_after(self._connect_timeout_s):
            return await trio_websocket.wrap_client_stream(
                nursery,
                stream,
                self._parts.netloc.rpartition("@")[2],
                f"{self._parts.path}?{self._parts.query}",
                extra_headers=self._headers,
                message_queue_size=16,
                max_message_size=MAX_FRAME_BYTES,
                receive_buffer_size=RECEIVE_BUFFER_BYTES,
            )

    def _too_slow(self) -> ConnectionLost:
        return ConnectionLost(f"no connection to {self.url} within {self._connect_timeout_s:g} s")

    def _translated(self, group: ExceptionGroup[Exception]) -> EngineError:
        """What ended a connection from inside the WebSocket library, as ours."""
        match _first_leaf(group):
            case trio_websocket.ConnectionRejected() as error:
                return _rejected(error)
            case trio.TooSlowError():
                return self._too_slow()
            case error:
                return ConnectionLost(f"connection to {self.url} failed: {str(error) or type(error).__name__}")


@contextmanager
def traced(trace: Trace | None, url: str) -> Iterator[None]:
    """Leave a connection's begin and end in the trace."""
    if trace is None:
        yield
        return
    trace.record("open", url)
    try:
        yield
    finally:
        trace.record("close")


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _lost(error: trio_websocket.ConnectionClosed) -> ConnectionLost:
    if error.reason is None:
        return ConnectionLost("connection closed")
    return ConnectionLost(f"connection closed: {error.reason.code} {error.reason.reason or error.reason.name}")


def _rejected(error: trio_websocket.ConnectionRejected) -> EngineError:
    """A refused handshake: final for what the client did wrong, worth another try for 429 and 5xx."""
    status = error.status_code
    detail = _rejection_detail(error.body)
    message = f"the server refused the connection: {status} {detail.get('message') or ''}".strip()
    if status == 429 or status >= 500:
        return ConnectionLost(message, status=status, code=detail.get("code"))
    return RunFailed(message, status=status, code=detail.get("code"), param=detail.get("param"))


def _rejection_detail(body: bytes | None) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(body or b"{}")
    except msgspec.DecodeError:
        return {}
    detail = data.get("error") if isinstance(data, dict) else None
    return detail if isinstance(detail, dict) else {}
