"""remote/link.py: a turn over a warm connection, what is tried again, what each phase may take."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import BrokenStream, TooSlow, Unreachable, UpstreamError
from engine.backends.remote.link import Line, Link, LinkConfig
from tests.remote_peer import Asked, Peer, Reply, open_peer, refusal, sse

KEY = "csk-very-secret"


class Words:
    """A turn of words; goes on from those it has where that is allowed."""

    path = "/words"

    def __init__(self, *, can_go_on: bool = False) -> None:
        self.words: list[str] = []
        self.is_answered = False
        self.came = trio.Event()
        self._can_go_on = can_go_on

    @property
    def num_taken(self) -> int:
        return len(self.words)

    @property
    def can_repeat(self) -> bool:
        return self._can_go_on or not self.words

    async def body(self, encoding: Encoding) -> bytes:
        await trio.lowlevel.checkpoint()
        return encoding.encode({"from": len(self.words)})

    def take(self, events: Sequence[bytes]) -> bool:
        for data in events:
            if data == b"[DONE]":
                self.is_answered = True
                return True
            self.words.append(msgspec.json.decode(data))
        self.came.set()
        return False


class Unending(Words):
    """Asks for what is left when an answer is over."""

    def take(self, events: Sequence[bytes]) -> bool:
        return True


class Complaining(Words):
    """Says what it did not like."""

    def take(self, events: Sequence[bytes]) -> bool:
        raise UpstreamError("broken", detail=repr(events))


def answering(asked: Asked) -> Reply:
    """The rest of what can be said."""
    return Reply(sse(*"abcd"[asked.value()["from"] :])) if asked.method == "POST" else refusal(404)


@asynccontextmanager
async def open_line(peer: Peer, **config: Any) -> AsyncIterator[Line]:
    line = Link(LinkConfig(base_url=peer.url, key=KEY, **config)).new_line()
    try:
        yield line
    finally:
        await line.aclose()


async def test_turns_share_one_connection_and_carry_the_key() -> None:
    async with open_peer(answering) as peer, open_line(peer) as line:
        for _ in range(3):
            turn = Words()
            await line.converse(turn)
            assert turn.words == list("abcd")
    assert [asked.target for asked in peer.asked] == ["/v1/words"] * 3
    assert {asked.connection for asked in peer.asked} == {1}
    assert peer.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_warming_makes_the_connection_that_the_turn_uses() -> None:
    async with open_peer(answering) as peer, open_line(peer) as line:
        await line.warm("/tcp_warming")
        await line.converse(Words())
    assert [(asked.target, asked.connection) for asked in peer.asked] == [("/v1/tcp_warming", 1), ("/v1/words", 1)]


async def test_warming_a_service_that_is_not_there_is_no_failure() -> None:
    async with open_peer() as peer:
        pass
    async with open_line(peer) as line:
        await line.warm("/tcp_warming")


async def test_a_path_behind_the_root_leaves_the_versions_out() -> None:
    link = Link(LinkConfig(base_url="http://127.0.0.1:1/v1/"))
    assert link.url("^/completion") == "http://127.0.0.1:1/completion"
    assert link.url("/completions") == "http://127.0.0.1:1/v1/completions"


# --- encodings


@pytest.mark.parametrize(
    ("status", "refuses", "left"),
    [
        (415, lambda headers: "msgpack" in headers["content-type"], Encoding(gzip=True)),
        (415, lambda headers: "content-encoding" in headers, PLAIN),
        (400, lambda headers: "content-encoding" in headers, PLAIN),
    ],
)
async def test_a_refused_encoding_is_left_out_from_then_on(status: int, refuses: Any, left: Encoding) -> None:
    def answer(asked: Asked) -> Reply:
        return refusal(status) if refuses(asked.headers) else answering(asked)

    async with open_peer(answer) as peer:
        link = Link(LinkConfig(base_url=peer.url, encoding=Encoding(msgpack=True, gzip=True)))
        line = link.new_line()
        await line.converse(Words())
        num_tried = len(peer.asked)
        await line.converse(Words())
        await line.aclose()
    assert link.encoding == left
    assert num_tried > 1
    assert len(peer.asked) == num_tried + 1


async def test_what_is_refused_in_plain_json_too_is_no_fault_of_the_encoding() -> None:
    async with open_peer(lambda asked: refusal(400)) as peer:
        link = Link(LinkConfig(base_url=peer.url, encoding=Encoding(msgpack=True, gzip=True)))
        line = link.new_line()
        with pytest.raises(UpstreamError):
            await line.converse(Words())
        await line.aclose()
    assert link.encoding == Encoding(msgpack=True, gzip=True)
    assert not link.is_proven


# --- what is tried again


async def test_a_connection_that_the_service_has_closed_is_made_again(autojump_clock: MockClock) -> None:
    async with open_peer(answering) as peer, open_line(peer) as line:
        peer.replies = [Reply(sse("x"), headers={"connection": "close"})]
        await line.converse(Words())
        await line.converse(Words())
    assert [asked.connection for asked in peer.asked] == [1, 2]
    assert trio.current_time() == pytest.approx(0, abs=0.1)


async def test_a_service_that_was_started_again_is_found_again(autojump_clock: MockClock) -> None:
    async with open_peer(answering) as peer:
        line = Link(LinkConfig(base_url=peer.url)).new_line()
        await line.converse(Words())
    turn = Words()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.converse, turn)
        await trio.sleep(1)
        async with open_peer(answering, peer.port):
            with trio.fail_after(20):
                await turn.came.wait()
            while not turn.is_answered:
                await trio.lowlevel.checkpoint()
    assert turn.words == list("abcd")
    await line.aclose()


@pytest.mark.parametrize(
    ("reply", "wait_s"),
    [
        (refusal(503), 0.25),
        (refusal(429, retry_after="7"), 7),
        (refusal(500, "queue exceeded", retry_after_ms="1500"), 1.5),
    ],
)
async def test_waits_before_it_asks_again(reply: Reply, wait_s: float, autojump_clock: MockClock) -> None:
    async with open_peer(answering) as peer, open_line(peer) as line:
        peer.replies = [reply]
        turn = Words()
        await line.converse(turn)
    assert turn.words == list("abcd")
    assert trio.current_time() == pytest.approx(wait_s, rel=0.3)


async def test_gives_up_after_so_many_tries(autojump_clock: MockClock) -> None:
    async with open_peer(lambda asked: refusal(503)) as peer, open_line(peer, retries=2) as line:
        with pytest.raises(UpstreamError, match="failed"):
            await line.converse(Words())
    assert len(peer.asked) == 3


async def test_a_wait_that_is_too_long_is_told_to_the_client() -> None:
    async with open_peer(lambda asked: refusal(429, retry_after="90")) as peer, open_line(peer) as line:
        with pytest.raises(UpstreamError, match=r"try again in 90s") as caught:
            await line.converse(Words())
    assert (caught.value.code, caught.value.status) == ("rate_limit_exceeded", 429)
    assert len(peer.asked) == 1


async def test_what_cannot_succeed_is_tried_once() -> None:
    async with open_peer(lambda asked: refusal(401)) as peer, open_line(peer) as line:
        with pytest.raises(UpstreamError, match="key"):
            await line.converse(Words())
    assert len(peer.asked) == 1


# --- breaks


async def test_a_break_before_the_first_word_is_mended() -> None:
    async with open_peer(answering) as peer, open_line(peer) as line:
        peer.replies = [Reply([], cut=20), Reply(sse("a"), cut=90)]
        turn = Words()
        await line.converse(turn)
    assert turn.words == list("abcd")


async def test_an_answer_that_ends_with_nothing_is_not_asked_for_for_ever(autojump_clock: MockClock) -> None:
    async with open_peer(lambda asked: Reply(sse())) as peer, open_line(peer, retries=2) as line:
        with pytest.raises(BrokenStream):
            await line.converse(Unending())
    assert len(peer.asked) == 4


async def test_a_break_behind_a_word_fails_unless_the_turn_can_go_on() -> None:
    for can_go_on in (False, True):
        async with open_peer(answering) as peer, open_line(peer) as line:
            peer.replies = [Reply(sse("a", "b", done=False))]
            turn = Words(can_go_on=can_go_on)
            if can_go_on:
                await line.converse(turn)
            else:
                with pytest.raises(BrokenStream):
                    await line.converse(turn)
            assert turn.words == list("abcd" if can_go_on else "ab")


async def test_what_breaks_behind_the_end_does_no_harm() -> None:
    reply = Reply(sse("a"))
    async with open_peer(answering) as peer, open_line(peer) as line:
        peer.replies = [Reply(sse("a"), cut=reply.num_bytes - 3)]
        turn = Words()
        await line.converse(turn)
        await line.converse(Words())
    assert turn.words == ["a"]
    assert len(peer.asked) == 2


async def test_each_attempt_that_brought_something_starts_the_count_anew(
    autojump_clock: MockClock,
) -> None:
    def one_word(asked: Asked) -> Reply:
        words = answering(asked).parts
        return Reply(words[:1] if len(words) > 1 else words)

    async with open_peer(one_word) as peer, open_line(peer, retries=1) as line:
        turn = Words(can_go_on=True)
        await line.converse(turn)
    assert turn.words == list("abcd")


# --- time


@pytest.mark.parametrize(
    ("parts", "after_s"),
    [
        (sse(None), 3),
        (sse("a", None), 5),
        (sse(2.0, "a", 4.0, "b", None), 11),
    ],
)
async def test_silence_breaks_the_stream(parts: Any, after_s: float, autojump_clock: MockClock) -> None:
    times = {"first_token_s": 3, "between_tokens_s": 5, "retries": 0}
    async with open_peer() as peer, open_line(peer, **times) as line:
        peer.replies = [Reply(parts)]
        with pytest.raises(BrokenStream):
            await line.converse(Words())
        assert trio.current_time() == pytest.approx(after_s, abs=0.1)
        await peer.closed.wait()


async def test_a_turn_ends_when_all_its_time_is_over(autojump_clock: MockClock) -> None:
    async with open_peer() as peer, open_line(peer, total_s=10) as line:
        peer.replies = [Reply(sse(*["a", 1.0] * 20))]
        with pytest.raises(TooSlow):
            await line.converse(Words())
        assert trio.current_time() == pytest.approx(10, abs=0.1)


async def test_nobody_listening_is_unreachable(autojump_clock: MockClock) -> None:
    async with open_peer() as peer:
        pass
    async with open_line(peer, retries=1) as line:
        with pytest.raises(Unreachable):
            await line.converse(Words())


async def test_cancelling_closes_the_connection_at_once() -> None:
    async with open_peer() as peer, open_line(peer) as line:
        peer.replies = [Reply(sse("a", None))]
        turn = Words()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.converse, turn)
            await turn.came.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(1):
            await peer.closed.wait()


async def test_a_connection_that_rested_for_too_long_is_made_anew() -> None:
    async with open_peer(answering) as peer, open_line(peer, max_idle_s=1e-9) as line:
        await line.converse(Words())
        await line.converse(Words())
    assert [asked.connection for asked in peer.asked] == [1, 2]


async def test_an_event_that_is_too_large_breaks_the_stream(autojump_clock: MockClock) -> None:
    parts: list[bytes | float | None] = [b'data: "' + b"x" * 200, 1.0, b'"\n\n']
    async with open_peer(lambda asked: Reply(parts)) as peer, open_line(peer, max_event_bytes=100) as line:
        with pytest.raises(BrokenStream):
            await line.converse(Words())


# --- what is heard, what is told


async def test_rate_limits_are_kept_from_the_head() -> None:
    head = {"x-ratelimit-limit-tokens-minute": "100", "x-ratelimit-remaining-tokens-minute": "25"}
    async with open_peer() as peer:
        link = Link(LinkConfig(base_url=peer.url))
        line = link.new_line()
        peer.replies = [Reply(sse("a"), headers=head), Reply(sse("a"))]
        await line.converse(Words())
        await line.converse(Words())
        await line.aclose()
    (limit,) = link.rate_limits
    assert (limit.name, limit.used_percent, limit.window_minutes) == ("tokens-minute", 75.0, 1.0)


async def test_get_gives_the_body_or_the_error() -> None:
    async with open_peer(lambda asked: refusal(403)) as peer, open_line(peer) as line:
        peer.replies = [Reply([b'{"data": []}'])]
        assert await line.get("/models") == b'{"data": []}'
        with pytest.raises(UpstreamError, match="key"):
            await line.get("/models")
        peer.replies = [Reply([b"no gzip"], headers={"content-encoding": "gzip"})]
        assert await line.get("/models") == b"no gzip"  # nobody asked for it, so nobody unpacks it
    async with open_peer() as peer, open_line(peer, max_event_bytes=9) as line:
        peer.replies = [Reply([b"more than that", None])]
        assert await line.get("/models") == b"more than that"  # and no more
    async with open_line(peer) as line:
        with pytest.raises(Unreachable):
            await line.get("/models")


async def test_a_refusal_needs_no_reasons(autojump_clock: MockClock) -> None:
    async with open_peer() as peer, open_line(peer) as line:
        peer.replies = [Reply([None], 401), Reply([b"[" * 100_000], 400)]
        for said in ("refused this server's key", "did not take the request"):
            with pytest.raises(UpstreamError, match=said):
                await line.converse(Words())
    assert trio.current_time() < 5


async def test_a_redirection_is_not_followed() -> None:
    async with open_peer(answering) as other, open_peer() as peer, open_line(peer) as line:
        peer.replies = [Reply([], status, {"location": other.url}) for status in (302, 307, 308)]
        for _ in range(2):
            with pytest.raises(UpstreamError, match="did not take the request"):
                await line.converse(Words())
        with pytest.raises(UpstreamError, match="did not take the request"):
            await line.get("/models")
    assert len(peer.asked) == 3 and not other.asked


async def test_the_key_is_in_no_log(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_peer(answering) as peer:
        line = Link(LinkConfig(base_url=peer.url, key=KEY, retries=1)).new_line()
        peer.replies = [refusal(500), refusal(500), refusal(401, f"{'x' * 290} {KEY}")]
        peer.replies.append(Reply([f'data: {{"error": "{KEY}"}}\n\n'.encode()]))
        await line.warm("/tcp_warming")
        for _ in range(2):
            with pytest.raises(UpstreamError):
                await line.converse(Complaining())
        await line.aclose()
    assert "***" in caplog.text
    assert KEY not in caplog.text and KEY[:8] not in caplog.text


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} {KEY}", f"{KEY}ä", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        Link(LinkConfig(base_url="http://127.0.0.1:1", key=key))
    assert KEY not in str(caught.value)
