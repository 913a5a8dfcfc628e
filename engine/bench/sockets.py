"""A client's WebSocket for benches: trio-websocket and nothing else, for longloop and for the bare peers alike."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

MAX_FRAME_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 10
CLOSE_TIMEOUT_S = 2


@asynccontextmanager
async def open_socket(
    port: int, resource: str = "/v1/responses", wrap: Callable[[trio.abc.Stream], trio.abc.Stream] | None = None
) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket to a server on this machine; its TCP stream is closed whatever happens.

    wrap: what to put between the TCP stream and the WebSocket.

    trio-websocket's own `open_websocket_url` leaves that open when the handshake fails, and when the server was the
    one to close (0.12.2). An exception of the block comes out as it is, in no group.
    """
    held: Exception | None = None
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            ws = await wrap_client_stream(
                nursery,
                wrap(stream) if wrap else stream,
                f"127.0.0.1:{port}",
                resource,
                max_message_size=MAX_FRAME_BYTES,
            )
        try:
            yield ws
        except Exception as error:
            held = error
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            await ws.aclose()
        nursery.cancel_scope.cancel()
    if held is not None:
        raise held
