"""Server-sent events: what one is on the wire, and an answer made of them.

Each event is one HTTP chunk: some clients' parsers lose an event whose blank line comes apart from its data.
Events have no `id:`, since `sequence_number` is what a client goes on from.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
import trio

from engine.events import ErrorDetails
from engine.server.exchange import Headers, Send

SSE_HEADERS: Final[Headers] = (("content-type", "text/event-stream"), ("cache-control", "no-store"))
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_DONE: Final = b"data: [DONE]\n\n"


def sse_event(type_: str, data: bytes) -> bytes:
    """An event with this name and one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), data)


def sse_error(failure: ErrorDetails, sequence_number: int) -> bytes:
    """An `error` event. The API has its fields beside `type`, Open Responses has them in `error`; here is both."""
    error = {
        "type": failure.type or "server_error",
        "code": failure.code,
        "message": failure.message,
        "param": failure.param or None,
    }
    event = error | {"type": "error", "error": error, "sequence_number": sequence_number}
    return sse_event("error", msgspec.json.encode(event))


async def send_events(send: Send, batches: AsyncIterator[Sequence[bytes]], keep_alive_s: float) -> None:
    """Send each batch of events as it comes, a comment whenever none came for `keep_alive_s`, `[DONE]` at the end.

    `batches` must lose nothing when its `__anext__` is cancelled.
    """
    while True:
        batch: Sequence[bytes] = (_KEEP_ALIVE,)
        try:
            with trio.move_on_after(keep_alive_s):
                batch = await anext(batches)
        except StopAsyncIteration:
            break
        await send(*batch)
    await send(_DONE)
