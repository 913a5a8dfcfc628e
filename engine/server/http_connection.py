"""HTTP/1.1 over a wire: requests in, answers out, and an eye on whether the peer is still there.

h11 parses and keeps the state; this module feeds it and sets the deadlines. Rules that are nowhere else:
- A refusal of the peer is a RequestError. A peer that left (or takes nothing) is PeerGone. Nothing of h11 gets out.
- While an answer is made, the connection is read on (`while_peer_stays`): that is how a peer's leaving is noticed
  before anything is sent. Its end of file counts as leaving, though it may be half a close: hardly any client asks
  that way, and TCP does not tell the two apart. What comes instead of an end belongs to the next request, is kept,
  and is bounded by `max_head_bytes`: beyond that we only notice when we send.
- Whoever makes the answer sees one thing of a peer that is gone: it is cancelled.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import TypeVar

import h11
import trio

from engine.errors import RequestError
from engine.ids import mint_id
from engine.server.coding import body_decoder
from engine.server.exchange import Answer, Head, Headers, Request, StreamedAnswer, request_id
from engine.server.replay import ReplayStream
from engine.server.wire import PeerGone, Wire
from engine.settings import Settings

T = TypeVar("T")


class HttpConnection:
    """One connection's requests and answers, one after the other."""

    def __init__(self, wire: Wire, settings: Settings, closing: trio.Event) -> None:
        self._wire = wire
        self._settings = settings
        self._closing = closing
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_head_bytes)
        self._received = bytearray()  # since the request began, as far as it may be one to replay
        self._head_deadline: float | None = trio.current_time() + settings.head_timeout_s  # None: starts with the head
        self._work = trio.CancelScope()
        self._start_cycle()

    def _start_cycle(self) -> None:
        self._request: h11.Request | None = None
        self._request_id = mint_id("req")
        self._is_read = trio.Event()  # the request is whole, so what comes next is not of its body
        self._is_broken = False  # the rest of the request is unusable, so the answer is the last one

    def replay(self) -> ReplayStream:
        """The stream as it was before the present request."""
        return ReplayStream(bytes(self._received), self._wire.stream)

    # --- in ---

    async def read_request(self) -> Request | None:
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
            head = _head(event)
            self._request_id = request_id(head) or self._request_id
            if not self._has_body():
                await self._next_event(self._received)  # its end, which needs no further bytes
            return Request(head, self._request_id, self.read_body)

    async def _wait_first_bytes(self) -> bool:
        with trio.move_on_at(self._head_deadline or trio.current_time() + self._settings.http_idle_s):
            self._feed(await self._wire.receive_unless(self._closing), self._received)
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

    def _has_body(self) -> bool:
        assert self._request is not None
        return bool(self._declared_bytes()) or b"transfer-encoding" in dict(self._request.headers)

    async def read_body(self) -> bytes:
        """The whole body of the present request, decoded. Raises RequestError (400, 408, 413, 415)."""
        assert self._request is not None
        decoder = body_decoder(_head(self._request).tokens("content-encoding"))
        body = bytearray()

        async def take(data: bytes) -> None:
            for piece in decoder.decode(data):
                self._check_body_size(len(body) + len(piece))
                body.extend(piece)
                await trio.lowlevel.checkpoint()  # a piece may take a millisecond to inflate, and be one of many

        async with self._leaving():
            await self._take_body(take)
        decoder.finish()
        return bytes(body)

    async def _take_body(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        deadline = trio.current_time() + self._settings.body_timeout_s
        with self._refusing(), _within(deadline, "the request's body"):
            self._check_body_size(self._declared_bytes())  # before a 100 Continue asks for it
            num_bytes = 0
            while isinstance(event := await self._next_body_event(), h11.Data):
                num_bytes += len(event.data)
                self._check_body_size(num_bytes)
                await take(bytes(event.data))

    def _declared_bytes(self) -> int:
        headers = dict(self._request.headers) if self._request else {}
        return int(headers.get(b"content-length", b"0"))  # h11 has checked that these are digits

    def _check_body_size(self, num_bytes: int) -> None:
        if num_bytes > self._settings.max_body_bytes:
            message = f"The body is larger than {self._settings.max_body_bytes} bytes."
            raise RequestError(message, status=413, code="body_too_large")

    async def _next_body_event(self) -> h11.Event | None:
        if self._is_read.is_set():
            return None
        return await self._next_event(bytearray())

    async def _next_event(self, received: bytearray) -> h11.Event:
        """h11's next event; bytes read on the way are added to `received`. Raises h11.RemoteProtocolError, PeerGone."""
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                if isinstance(event, h11.EndOfMessage):
                    self._is_read.set()
                return event
            assert event is h11.NEED_DATA, "h11 pauses only after a request, and is not asked then"
            if self._h11.they_are_waiting_for_100_continue:
                await self._wire.send_all(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._feed(await self._wire.receive(), received)

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

    # --- while an answer is made ---

    async def while_peer_stays(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns. Raises PeerGone when the peer leaves first; `work` is cancelled then.

        Watching begins when the request is read whole. `work` must raise nothing but Cancelled.
        """
        async with trio.open_nursery() as nursery:
            self._work = nursery.cancel_scope
            nursery.start_soon(self._watch)
            result = await work()
            nursery.cancel_scope.cancel("done")
            return result
        raise PeerGone

    async def _watch(self) -> None:
        await self._is_read.wait()
        num_bytes = 0
        while num_bytes < self._settings.max_head_bytes:
            data = b""
            with suppress(PeerGone):
                data = await self._wire.receive()
            if not data:
                self._work.cancel("the peer left")
                return
            num_bytes += len(data)
            self._feed(data, self._received)

    @asynccontextmanager
    async def _leaving(self) -> AsyncIterator[None]:
        """Turn PeerGone into the cancellation of the work."""
        try:
            yield
        except PeerGone:
            self._work.cancel("the peer is gone")
            await trio.sleep_forever()  # until that cancellation is here

    # --- out ---

    @property
    def has_begun(self) -> bool:
        """Whether something of the answer was sent, so that no other can be."""
        return self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    async def send(self, answer: Answer) -> None:
        """Send a whole answer. Raises PeerGone."""
        headers = (
            ("content-type", "application/json"),
            ("content-length", str(len(answer.body))),
            ("cache-control", "no-store"),
            *answer.headers,
        )
        events: list[h11.Event] = [self._response(answer.status, headers)]
        if self._request is None or self._request.method != b"HEAD":
            events.append(h11.Data(data=answer.body))
        await self._send_events(*events, h11.EndOfMessage())

    async def stream(self, answer: StreamedAnswer) -> None:
        """Send what `answer` produces, inside `while_peer_stays`. Raises what its `produce` raises."""
        head: list[h11.Event] = [self._response(answer.status, answer.headers)]

        async def send(*chunks: bytes) -> None:
            events = [*head, *(h11.Data(data=chunk) for chunk in chunks)]
            head.clear()
            async with self._leaving():
                await self._send_events(*events)

        await answer.produce(send)
        await self._send_events(*head, h11.EndOfMessage())

    def _response(self, status: int, headers: Headers) -> h11.Response:
        lines = [("date", formatdate(usegmt=True)), ("x-request-id", self._request_id), *headers]
        # A client that was not told to continue may send its body or leave it out: what follows cannot be told apart.
        if self._is_broken or self._h11.they_are_waiting_for_100_continue or self._closing.is_set():
            lines.append(("connection", "close"))
        return h11.Response(status_code=status, headers=lines, reason=HTTPStatus(status).phrase)

    async def is_ready_for_next(self) -> bool:
        """Read away what is left of the request. True when the connection can take another one. Raises PeerGone."""
        if self._is_broken or self._h11.our_state is not h11.DONE:
            return False
        with suppress(RequestError):
            await self._take_body(_discard)
        if self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self._received = bytearray(self._h11.trailing_data[0])
        self._head_deadline = None
        self._start_cycle()
        return True

    async def _send_events(self, *events: h11.Event) -> None:
        await self._wire.send_all(b"".join(self._h11.send(event) or b"" for event in events))


def _head(request: h11.Request) -> Head:
    return Head(
        method=request.method.decode("ascii"),
        target=request.target.decode("ascii"),
        headers=tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers),
        http_version=request.http_version.decode("ascii"),
    )


def _malformed() -> RequestError:
    return RequestError("The request is not valid HTTP/1.1.", code="malformed_request")


async def _discard(data: bytes) -> None:
    pass


@contextmanager
def _within(deadline: float, what: str) -> Iterator[None]:
    """Raises RequestError with status 408 at `deadline` (trio's clock, seconds)."""
    try:
        with trio.fail_at(deadline):
            yield
    except trio.TooSlowError:
        raise RequestError(f"Waited too long for {what}.", status=408, code="request_timeout") from None
