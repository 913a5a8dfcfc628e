"""One connection's HTTP/1.1, up to its end or to the hand-off of a WebSocket upgrade.

    wait for bytes (idle) → head → route → answer → rest of the body → wait for bytes …
                                     ├→ streamed answer: the route's `produce` sends it
                                     └→ upgrade: the stream and every byte since the request began go to the caller

Rules that are nowhere else:
- A refusal is an EngineError, whoever raises it, and is answered as JSON; a bug is logged and answered by 500. A peer
  that left ends the connection silently.
- The answer is sent before the rest of the body is read, so nobody sends 64 MiB to learn of a 404. `read_body` is for
  routes that want the body; only then is a `100 Continue` sent.
- Routes and producers are cancelled when the peer leaves. A whole answer that is ready is sent in any case.
- A streamed answer that breaks off has no last chunk, and the connection ends: the client can tell. Its producer may
  give up on a peer that takes too little, by trio.TooSlowError.
- An answer after a broken or oversized request ends the connection. We then half-close and read on for `linger_s`:
  closing a socket with unread bytes makes the kernel send RST, which can destroy the answer on its way.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from engine.errors import EngineError, ServerError
from engine.server.access import Admission
from engine.server.exchange import Answer, Request, StreamedAnswer, error_answer
from engine.server.http_connection import HttpConnection
from engine.server.replay import ReplayStream
from engine.server.wire import PeerGone, Wire
from engine.settings import Settings

log = logging.getLogger(__name__)

Outcome = Answer | StreamedAnswer | Admission
Route = Callable[[Request], Awaitable[Outcome]]
Upgrade = Callable[[trio.abc.Stream, Admission], Awaitable[None]]


async def serve_http(
    stream: trio.abc.Stream,
    settings: Settings,
    route: Route,
    upgrade: Upgrade,
    closing: trio.Event | None = None,
) -> None:
    """Serve requests until the connection ends or upgrades; then `upgrade` has the stream. Closes it in any case.

    Once `closing` is set the connection ends as soon as it waits for a request; upgraded ones are the caller's.
    What `upgrade` raises gets out, so the caller keeps the connection's catch-all.
    """
    wire = Wire(stream, settings)
    closing = trio.Event() if closing is None else closing
    try:
        # What h11 needs ends with this call: 5 kB less for each connection that is upgraded and may stay for hours.
        upgraded = await _serve_requests(wire, HttpConnection(wire, settings, closing), route)
        if upgraded is not None:
            await upgrade(*upgraded)
    finally:
        await wire.aclose()


async def _serve_requests(
    wire: Wire, connection: HttpConnection, route: Route
) -> tuple[ReplayStream, Admission] | None:
    """The stream to upgrade and on which terms, or None when the connection is over."""
    with suppress(PeerGone):
        while (outcome := await _next_outcome(connection, route)) is not None:
            if isinstance(outcome, Admission):
                return connection.replay(), outcome
            if isinstance(outcome, Answer):
                await connection.send(outcome)
            if not await connection.is_ready_for_next():
                await wire.linger()
                return None
    return None


class _Sent:
    """The answer was streamed, to its end or until it broke off."""


async def _next_outcome(connection: HttpConnection, route: Route) -> Answer | Admission | _Sent | None:
    """What the next request gets; None when there is no next request."""
    try:
        request = await connection.read_request()
    except EngineError as error:
        return error_answer(error)
    if request is None:
        return None
    return await connection.while_peer_stays(partial(_answer, connection, route, request))


async def _answer(connection: HttpConnection, route: Route, request: Request) -> Answer | Admission | _Sent:
    try:
        outcome = await route(request)
        if not isinstance(outcome, StreamedAnswer):
            return outcome
        await connection.stream(outcome)
    except Exception as error:
        if isinstance(error, trio.TooSlowError) and connection.has_begun:
            log.info("request %s: the peer is too slow", request.id)
            return _Sent()
        if isinstance(error, EngineError) and not connection.has_begun:
            return error_answer(error)
        log.exception("request %s failed", request.id)
        if not connection.has_begun:
            return error_answer(ServerError("The server had an error while processing the request."))
    return _Sent()
