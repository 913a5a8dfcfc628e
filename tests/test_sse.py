"""sse.py: the form of an event, and when comments go out."""

import json
from collections.abc import Sequence
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from engine.events import ErrorDetails
from engine.server.exchange import Request, StreamedAnswer
from engine.server.sse import SSE_HEADERS, send_events, sse_error, sse_event
from tests.http_peer import GET, TIMES, serving

FIRST, SECOND = sse_event("response.created", b'{"n":0}'), sse_event("response.completed", b'{"n":1}')
ALIVE, DONE = b": keep-alive\n\n", b"data: [DONE]\n\n"


class Sent:
    """What was sent, each write with its time."""

    def __init__(self) -> None:
        self.writes: list[tuple[float, tuple[bytes, ...]]] = []

    async def __call__(self, *chunks: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append((round(trio.current_time(), 3), chunks))


class Timed:
    """Batches, each some seconds after the one before; a cancelled wait loses nothing."""

    def __init__(self, *batches: tuple[float, Sequence[bytes]]) -> None:
        self._batches = list(batches)
        self._due: float | None = None

    def __aiter__(self) -> "Timed":
        return self

    async def __anext__(self) -> Sequence[bytes]:
        if not self._batches:
            raise StopAsyncIteration
        self._due = self._due or trio.current_time() + self._batches[0][0]
        await trio.sleep_until(self._due)
        self._due = None
        return self._batches.pop(0)[1]


def test_an_event_has_its_name_its_data_and_nothing_else() -> None:  # P65
    assert FIRST == b'event: response.created\ndata: {"n":0}\n\n'


def test_an_error_is_said_in_both_forms() -> None:  # P66
    name, data, *rest = sse_error(ErrorDetails("server_error", "No."), 7).decode().split("\n")
    assert (name, rest) == ("event: error", ["", ""])
    fields = {"code": "server_error", "message": "No.", "param": None}
    error = fields | {"type": "server_error"}
    assert json.loads(data.removeprefix("data: ")) == fields | {"type": "error", "sequence_number": 7, "error": error}


async def test_batches_go_out_as_they_come_and_done_comes_last(autojump_clock: MockClock) -> None:
    sent = Sent()
    await send_events(sent, Timed((0, [FIRST]), (2, [FIRST, SECOND])), 15)
    assert sent.writes == [(0, (FIRST,)), (2, (FIRST, SECOND)), (2, (DONE,))]


async def test_a_stream_without_events_is_done_at_once(autojump_clock: MockClock) -> None:
    sent = Sent()
    await send_events(sent, Timed(), 15)
    assert sent.writes == [(0, (DONE,))]


async def test_silence_is_broken_by_comments_between_whole_events(autojump_clock: MockClock) -> None:  # P65
    sent = Sent()
    await send_events(sent, Timed((14, [FIRST]), (31, [SECOND])), 15)
    assert sent.writes == [(14, (FIRST,)), (29, (ALIVE,)), (44, (ALIVE,)), (45, (SECOND,)), (45, (DONE,))]


async def test_what_fails_gets_out_and_no_done_is_sent(autojump_clock: MockClock) -> None:
    class Failing(Timed):
        async def __anext__(self) -> Sequence[bytes]:
            await trio.lowlevel.checkpoint()
            raise KeyError("bug")

    sent = Sent()
    with pytest.raises(KeyError):
        await send_events(sent, Failing(), 15)
    assert sent.writes == []


async def test_over_http_a_silent_stream_is_kept_alive_as_the_setting_says(autojump_clock: MockClock) -> None:
    async def route(request: Request) -> StreamedAnswer:
        batches = Timed((0, [FIRST]), (TIMES.sse_keep_alive_s + 1, [SECOND]))
        produce = partial(send_events, batches=batches, keep_alive_s=TIMES.sse_keep_alive_s)
        return StreamedAnswer(produce, SSE_HEADERS)

    async with serving(route=route) as client:
        await client.send_all(GET)
        head, _, first = bytes(await client.receive_some()).partition(b"\r\n\r\n")
        assert b"content-type: text/event-stream\r\n" in head + b"\r\n"
        assert b"cache-control: no-store\r\n" in head + b"\r\n"
        assert first == b"%x\r\n%b\r\n" % (len(FIRST), FIRST)
        assert await client.receive_some() == b"e\r\n%b\r\n" % ALIVE
        assert trio.current_time() == TIMES.sse_keep_alive_s
        await trio.sleep(2)
        assert bytes(await client.receive_some()).endswith(b"\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
