"""A service for `longloop bench remote`: answers completions and chat completions as Cerebras does, infers nothing.

`python -m engine.bench.service` prints the port that it listens on, and stops when its input closes. The base URL says
how it answers: `/tokens/200/rate/3000/v1` gives 200 ids, or words, a turn, 3,000 a second (0: at once), a chunk each.
`GET /bytes` tells how long the last body was that asked for them.
"""

import json
import sys
from functools import partial
from typing import Final

import h11
import trio

WINDOW: Final = 1 << 20
MODEL: Final = "bench"
_ID: Final = 90  # any id that is text
_STOP_ID: Final = 2  # of the default tokenizer, and of the tests'
_Choice = dict[str, object]
# Of each token, and of the last.
_IDS: Final[tuple[_Choice, _Choice]] = (
    {"index": 0, "tokens": [_ID], "finish_reason": None},
    {"index": 0, "tokens": [_STOP_ID], "finish_reason": "stop"},
)
_WORDS: Final[tuple[_Choice, _Choice]] = (
    {"index": 0, "delta": {"content": "word "}, "finish_reason": None},
    {"index": 0, "delta": {}, "finish_reason": "stop"},
)
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Service:
    """What it was asked last: the length of the body."""

    def __init__(self) -> None:
        self.body_bytes = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        try:
            async with stream:
                while (asked := await _receive(stream)) is not None and await self._answer(stream, *asked):
                    pass
        except trio.BrokenResourceError:
            pass  # the client left in the middle of an answer

    async def _answer(self, stream: trio.SocketStream, target: str, num_bytes: int) -> bool:
        """Whether the connection is kept."""
        path = target.split("/")
        match path[-1]:
            case "completions":
                self.body_bytes = num_bytes
                await _stream(stream, _WORDS if path[-2] == "chat" else _IDS, int(path[2]), float(path[4]))
            case "models":
                await _send_json(stream, {"data": [{"id": MODEL, "max_model_len": WINDOW}]})
            case _:
                await _send_json(stream, self.body_bytes)
                return False
        return True


async def _stream(stream: trio.SocketStream, choices: tuple[_Choice, _Choice], count: int, rate: float) -> None:
    usage = {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    one, end = (_chunk({"choices": [choice]}) for choice in choices)
    last = end + _chunk({"choices": [], "usage": usage}) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    await stream.send_all(_HEAD)
    begin = trio.current_time()
    for number in range(count - 1):
        if rate:
            await trio.sleep_until(begin + number / rate)
        await stream.send_all(one)
    await stream.send_all(last)


def _chunk(value: object) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "system_fingerprint": "fp"}
    return _framed(b"data: " + json.dumps(head | dict(value)).encode() + b"\n\n")  # type: ignore[call-overload]


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _send_json(stream: trio.SocketStream, value: object) -> None:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    await stream.send_all(head + body)


async def _receive(stream: trio.SocketStream) -> tuple[str, int] | None:
    """A request's target and the length of its body; None at the end."""
    http, target, num_bytes = h11.Connection(h11.SERVER), "", 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(1 << 20))
        elif isinstance(event, h11.Request):
            target = event.target.decode()
        elif isinstance(event, h11.Data):
            num_bytes += len(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return target, num_bytes
        else:
            return None


async def _main() -> None:
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, Service().serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
