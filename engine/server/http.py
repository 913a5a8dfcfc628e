"""One connection's HTTP/1.1, up to its end or to the hand-off of a WebSocket upgrade.

    wait for bytes (idle) → head → route → answer → rest of the body → wait for bytes …
                                     └→ upgrade: the stream and every byte since the request began go to the caller

h11 parses and keeps the state; this module moves bytes, sets the deadlines and decides when a connection may go on.
Rules that are nowhere else:
- A refusal of the peer is an EngineError, whoever raises it, and is answered as JSON. A peer that left (or reads
  nothing) is PeerGone and ends the connection silently. Nothing of h11 or of the stream gets out of here.
- The answer is sent before the rest of the body is read, so nobody sends 64 MiB to learn of a 404. `read_body` is for
  routes that want the body; only then is a `100 Continue` sent.
- An answer after a broken or oversized request ends the connection. We then half-close and read on for `linger_s`:
  closing a socket with unread bytes makes the kernel send RST, which can destroy the answer on its way.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11
import trio

from engine.errors import EngineError, RequestError
from engine.server.access import Admission
from engine.server.exchange import Answer, Head, error_answer
from engine.settings import Settings

_CHUNK_BYTES: Final = 64 << 10  # trio's own default; smaller costs time on large bodies
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

ReadBody = Callable[[], Awaitable[bytes]]
Route = Callable[[Head, ReadBody], Awaitable[Answer | Admission]]
Upgrade = Callable[[trio.abc.Stream, Admission], Awaitable[None]]


class PeerGone(Exception):
    """The peer closed the connection, cut it, or takes nothing more. There is nobody to tell."""


class ReplayStream(trio.abc.Stream):
    """A stream that first returns bytes which were already read from it, then reads on."""

    __slots__ = ("_inner", "_received")

    def __init__(self, received: bytes, inner: trio.abc.Stream) -> None:
        self._received = received
        self._inner = inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's. Raises trio.BrokenResourceError, trio.ClosedResourceError."""
        if not self._received:
            return await self._inner.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        end = len(self._received) if max_bytes is None else max_bytes
        part, self._received = self._received[:end], self._received[end:]
        return part

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream underneath."""
        await self._inner.aclose()


async def serve_http(
    stream: trio.abc.Stream,
    settings: Settings,
    route: Route,
    upgrade: Upgrade,
    closing: trio.Event | None = None,
) -> None:
    """Serve requests until the connection ends or upgrades; then `upgrade` has the stream. Closes it in any case.

    Once `closing` is set the connection ends as soon as it waits for a request; upgraded ones are the caller's.
    `route` may raise EngineError, which is answered. Anything else from `route` or `upgrade` gets out, so the caller
    keeps the connection's catch-all.
    """
    try:
        # What h11 needs ends with this call: 5 kB less for each connection that is upgraded and may stay for hours.
        upgraded = await _serve_requests(_Connection(stream, settings, closing), route)
        if upgraded is not None:
            await upgrade(*upgraded)
    finally:
        with suppress(*_GONE):  # an SSLStream says goodbye first and may find nobody
            await stream.aclose()


async def _serve_requests(connection: "_Connection", route: Route) -> "tuple[ReplayStream, Admission] | None":
    """The stream to upgrade and on which terms, or None when the connection is over."""
    with suppress(PeerGone):
        while True:
            outcome = await _next_outcome(connection, route)
            if outcome is None:
                return None
            if isinstance(outcome, Admission):
                return connection.replay(), outcome
            await connection.send(outcome)
            if not await connection.is_ready_for_next():
                await connection.linger()
                return None
    return None


async def _next_outcome(connection: "_Connection", route: Route) -> Answer | Admission | None:
    """What the next request gets; None when there is no next request."""
    try:
        head = await connection.read_head()
        return None if head is None else await route(head, connection.read_body)
    except EngineError as error:
        return error_answer(error)


class _Connection:
    """h11 over a stream: heads and bodies in, answers out, deadlines on everything."""

    def __init__(self, stream: trio.abc.Stream, settings: Settings, closing: trio.Event | None) -> None:
        self._stream = stream
        self._settings = settings
        self._closing = trio.Event() if closing is None else closing
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_head_bytes)
        self._received = bytearray()  # since the request began, until its head is whole
        self._head_deadline: float | None = trio.current_time() + settings.head_timeout_s  # None: starts with the head
        self._request: h11.Request | None = None
        self._is_broken = False  # the rest of the request is unusable, so the answer is the last one

    def replay(self) -> ReplayStream:
        """The stream as it was before the present request."""
        return ReplayStream(bytes(self._received), self._stream)

    # --- in ---

    async def read_head(self) -> Head | None:
        """The next request; None if the peer left, sent no byte of one for too long, or the server closes.

        Raises RequestError (400, 408, 431, 501, 505), PeerGone.
        """
        if not self._received and not await self._wait_first_bytes():
            return None
        deadline = self._head_deadline or trio.current_time() + self._settings.head_timeout_s
        with self._refusing(), _within(deadline, "the request's head"):
            event = await self._next_event(self._received)
            assert isinstance(event, h11.Request), "after the first byte h11 knows a request or an error"
            self._request = event
            self._check_head(event)
            return _head(event)

    async def _wait_first_bytes(self) -> bool:
        with trio.move_on_at(self._head_deadline or trio.current_time() + self._settings.http_idle_s):
            self._feed(await self._receive_unless_closing(), self._received)
            return bool(self._received)
        return False  # no 408: a client that is just sending its next request would take it for the answer

    def _check_head(self, request: h11.Request) -> None:
        num_bytes = len(self._received) - len(self._h11.trailing_data[0])
        if num_bytes > self._settings.max_head_bytes:  # h11 only counts heads that are not whole yet
            raise self._head_too_large()
        if not request.http_version.startswith(b"1."):
            raise RequestError("Only HTTP/1.1 is spoken here.", status=505, code="http_version_not_supported")
        if {b"content-length", b"transfer-encoding"} <= dict(request.headers).keys():
            raise _malformed()  # two lengths: a proxy may have believed the other one (RFC 9112 6.3)

    async def read_body(self) -> bytes:
        """The whole body of the present request. Raises RequestError (400, 408, 413), PeerGone."""
        body = bytearray()
        await self._take_body(body.extend)
        return bytes(body)

    async def _take_body(self, take: Callable[[bytes], object]) -> None:
        deadline = trio.current_time() + self._settings.body_timeout_s
        with self._refusing(), _within(deadline, "the request's body"):
            self._check_body_size(self._declared_bytes())  # before a 100 Continue asks for it
            num_bytes = 0
            while isinstance(event := await self._next_body_event(), h11.Data):
                num_bytes += len(event.data)
                self._check_body_size(num_bytes)
                take(bytes(event.data))

    def _declared_bytes(self) -> int:
        headers = dict(self._request.headers) if self._request else {}
        return int(headers.get(b"content-length", b"0"))  # h11 has checked that these are digits

    def _check_body_size(self, num_bytes: int) -> None:
        if num_bytes > self._settings.max_body_bytes:
            message = f"The body is larger than {self._settings.max_body_bytes} bytes."
            raise RequestError(message, status=413, code="body_too_large")

    async def _next_body_event(self) -> h11.Event | None:
        if self._h11.their_state is not h11.SEND_BODY:
            return None
        return await self._next_event(bytearray())

    async def _next_event(self, received: bytearray) -> h11.Event:
        """h11's next event; bytes read on the way are added to `received`. Raises h11.RemoteProtocolError, PeerGone."""
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                return event
            assert event is h11.NEED_DATA, "h11 pauses only after a request, and is not asked then"
            if self._h11.they_are_waiting_for_100_continue:
                await self._send_all(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._feed(await self._receive(), received)

    def _feed(self, data: bytes, received: bytearray) -> None:
        received += data
        self._h11.receive_data(data)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn what h11 finds wrong into a RequestError; after any refusal in here the connection cannot go on."""
        try:
            yield
        except h11.RemoteProtocolError as error:
            self._is_broken = True
            raise self._refusal(error.error_status_hint) from error
        except RequestError:
            self._is_broken = True
            raise

    def _refusal(self, status: int) -> RequestError:
        # h11's own text is not passed on: it may quote the request, keys included.
        if status == 431:
            return self._head_too_large()
        if status == 501:
            return RequestError("The only transfer encoding is chunked.", status=501, code="unsupported_encoding")
        return _malformed()

    def _head_too_large(self) -> RequestError:
        message = f"The request's head is larger than {self._settings.max_head_bytes} bytes."
        return RequestError(message, status=431, code="head_too_large")

    # --- out ---

    async def send(self, answer: Answer) -> None:
        """Send a whole answer. Raises PeerGone."""
        events: list[h11.Event] = [self._response(answer)]
        if self._request is None or self._request.method != b"HEAD":
            events.append(h11.Data(data=answer.body))
        events.append(h11.EndOfMessage())
        await self._send_all(b"".join(self._h11.send(event) or b"" for event in events))

    def _response(self, answer: Answer) -> h11.Response:
        headers = [
            ("date", formatdate(usegmt=True)),
            ("content-type", "application/json"),
            ("content-length", str(len(answer.body))),
            ("cache-control", "no-store"),
            *answer.headers,
        ]
        # A client that was not told to continue may send its body or leave it out: what follows cannot be told apart.
        if self._is_broken or self._h11.they_are_waiting_for_100_continue or self._closing.is_set():
            headers.append(("connection", "close"))
        reason = HTTPStatus(answer.status).phrase
        return h11.Response(status_code=answer.status, headers=headers, reason=reason)

    async def is_ready_for_next(self) -> bool:
        """Read away what is left of the request. True when the connection can take another one. Raises PeerGone."""
        if self._is_broken or self._h11.our_state is not h11.DONE:
            return False
        with suppress(RequestError):
            await self._take_body(lambda part: None)
        if self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self._received = bytearray(self._h11.trailing_data[0])
        self._request = None
        self._head_deadline = None
        return True

    async def linger(self) -> None:
        """Say that nothing more comes, and read on until the peer closes too or `linger_s` is over."""
        with suppress(*_GONE), trio.move_on_after(self._settings.linger_s):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            while await self._stream.receive_some(_CHUNK_BYTES):
                pass

    # --- the stream ---

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_CHUNK_BYTES))
        except _GONE as error:
            raise PeerGone from error

    async def _receive_unless_closing(self) -> bytes:
        """As `_receive`, but nothing if the peer is gone or the server closes."""
        data = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_closing, nursery.cancel_scope)
            with suppress(PeerGone):
                data = await self._receive()
            nursery.cancel_scope.cancel("bytes came")
        return data

    async def _cancel_when_closing(self, scope: trio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel("the server closes")

    async def _send_all(self, data: bytes) -> None:
        """Raises PeerGone, also when the peer takes nothing for `send_timeout_s`; the stream is of no use then."""
        try:
            with trio.fail_after(self._settings.send_timeout_s):
                await self._stream.send_all(data)
        except (*_GONE, trio.TooSlowError) as error:
            raise PeerGone from error


def _head(request: h11.Request) -> Head:
    return Head(
        method=request.method.decode("ascii"),
        target=request.target.decode("ascii"),
        headers=tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers),
        http_version=request.http_version.decode("ascii"),
    )


def _malformed() -> RequestError:
    return RequestError("The request is not valid HTTP/1.1.", code="malformed_request")


@contextmanager
def _within(deadline: float, what: str) -> Iterator[None]:
    """Raises RequestError with status 408 at `deadline` (trio's clock, seconds)."""
    try:
        with trio.fail_at(deadline):
            yield
    except trio.TooSlowError:
        raise RequestError(f"Waited too long for {what}.", status=408, code="request_timeout") from None
