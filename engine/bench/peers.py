"""The bare peers that benches compare with: trio-websocket and nothing else.

`python -m engine.bench.peers echo`   answers every frame with frames of the sizes asked for in its query
`python -m engine.bench.peers blast`  sends a given frame a given number of times

Both print the port they listen on. They stop when their input closes.
"""

import sys
from functools import partial
from urllib.parse import parse_qs, urlsplit

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket


async def _echo(request: WebSocketRequest) -> None:
    """Answer each frame with frames of `sizes` characters: what a server has to send at least."""
    sizes = [int(size) for size in parse_qs(urlsplit(request.path).query).get("sizes", ["64"])[0].split(",")]
    answers = ["x" * size for size in sizes]
    ws = await request.accept()
    try:
        while True:
            await ws.get_message()
            for answer in answers:
                await ws.send_message(answer)
    except ConnectionClosed:
        pass


async def _blast(request: WebSocketRequest) -> None:
    """Send the first frame that comes in back `count` times, then one that says `end`."""
    count = int(parse_qs(urlsplit(request.path).query)["count"][0])
    ws = await request.accept()
    try:
        while True:
            frame = await ws.get_message()
            for _ in range(count):
                await ws.send_message(frame)
            await ws.send_message("end")
    except ConnectionClosed:
        pass


async def _main(kind: str) -> None:
    handler = {"echo": _echo, "blast": _blast}[kind]
    async with trio.open_nursery() as nursery:
        serve = partial(serve_websocket, handler, "127.0.0.1", 0, None, max_message_size=64 << 20)
        server = await nursery.start(serve)
        print(server.port, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main, sys.argv[1])
