"""Slow, silent and greedy peers: what each limit of a connection does, the clock mocked."""

import json

import pytest
import trio
from trio_websocket import ConnectionClosed

from engine.live import Live
from tests.served import FUNCTION, Served, open_served, pending

FAST = "model: m\nsteps:\n  - text: {words: 20000}\n"
PACED = "model: m\npace: {tokens_per_second: 100}\nsteps:\n  - text: {words: 100000}\n"


async def _stuck(server: Served, **fields: object) -> tuple[trio.abc.Stream, Live]:
    """A client that has created a run and takes nothing from then on, and its run."""
    stream = server.stream(lockstep=True)
    await _open_by_hand(stream)
    await stream.send_all(_client_text({"type": "response.create", "input": "go"} | fields))
    await trio.testing.wait_all_tasks_blocked()
    (live,) = server.app.responses.runs.lives.values()
    return stream, live


async def test_a_reader_that_takes_nothing_loses_its_connection_not_its_run(autojump_clock):  # P37
    async with open_served(FAST, send_timeout_s=3, high_water_events=64) as server:
        stream, live = await _stuck(server, resumable=True)
        assert live.response.log.next < 20_000  # sampling waits for the reader
        await trio.sleep(10)
        await trio.testing.wait_all_tasks_blocked()
        assert live.response.status.value == "completed"
        async with server.connect() as client:
            await client.send("response.resume", response_id=live.response.id)
            assert (await client.until("response.completed"))[-1]["response"]["status"] == "completed"
        await stream.aclose()


async def test_a_reader_that_stalls_is_dropped_and_the_run_goes_on_for_the_others(autojump_clock):  # P37
    async with open_served(FAST, high_water_events=64, stall_s=3, send_timeout_s=60) as server:
        stream, live = await _stuck(server, resumable=True)
        async with server.connect() as client:
            await client.send("response.resume", response_id=live.response.id)
            events = (await client.until("response.completed"))[1:]
        assert trio.current_time() == pytest.approx(3, abs=1)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        await stream.aclose()


async def test_a_stalled_reader_that_takes_again_learns_that_it_was_dropped(autojump_clock):  # P37
    async with open_served(FAST, high_water_events=64, stall_s=5, send_timeout_s=60) as server:
        stream, live = await _stuck(server)
        await trio.sleep(6)
        # Nobody else reads it, and nobody may resume it.
        assert (live.response.status.value, live.end_reason) == ("incomplete", "connection_lost")
        received = b""
        with trio.fail_after(10):
            while part := await stream.receive_some():
                received = (received + part)[-200:]
        assert b"\x03\xf5slow reader" in received  # 1013 in the close frame
        await stream.aclose()


async def test_a_peer_that_answers_no_ping_is_dropped(autojump_clock):  # P35
    async with open_served(
        PACED, ping_every_s=5, pong_timeout_s=5, send_timeout_s=1000, high_water_events=500_000
    ) as server:
        stream = server.stream()
        await _open_by_hand(stream)
        received = bytearray()
        with trio.fail_after(30):
            while part := await stream.receive_some():
                received += part
        assert trio.current_time() == pytest.approx(5 + 5 + 5, abs=1)  # ping, no pong, no closing handshake
        assert b"\x03\xf3" in received  # 1011 in the close frame


async def test_no_pong_is_asked_for_while_a_run_is_paused(autojump_clock):  # P35
    async with open_served(ping_every_s=5, pong_timeout_s=5) as server:
        stream = server.stream()
        await _open_by_hand(stream)
        await stream.send_all(_client_text({"type": "response.create", "input": "go", "tools": [FUNCTION]}))
        received = bytearray()
        with trio.move_on_after(60):
            while part := await stream.receive_some():
                received += part
        assert trio.current_time() == pytest.approx(60, abs=1)
        assert b"response.done" in received
        await stream.aclose()


async def test_more_open_runs_than_allowed_are_refused():
    async with open_served(max_runs_per_principal=2) as server, server.connect() as client:
        for lane in "ab":
            await client.create(stream_id=lane)
            await client.step()
        await client.create(stream_id="c")
        error = await client.receive()
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
        async with server.connect(headers=[(b"Authorization", b"Bearer other")]) as other:
            await other.create()
            assert (await other.step())[-1]["type"] == "response.done"


async def test_more_connections_than_allowed_are_refused():
    async with open_served(max_connections=1) as server, server.connect():
        stream = server.stream()
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = bytes(await stream.receive_some())
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"server_is_overloaded" in answer
        await stream.aclose()


async def test_a_frame_over_the_limit_closes_with_1009_and_the_run_can_be_resumed():
    async with open_served(max_frame_bytes=10_000) as server:
        async with server.connect() as client:
            await client.create(resumable=True)
            frames = await client.step()
            await client.ws.send_message("x" * 20_000)
            with pytest.raises(ConnectionClosed) as closed:
                await client.ws.get_message()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1009
        async with server.connect() as client:
            await client.send("response.resume", response_id=frames[0]["response"]["id"], starting_after=2)
            keys = pending(await client.step())
            await client.answer((keys[0], "a"), (keys[1], "b"))
            assert (await client.step())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "frame",
    ["[" * 200 + "]" * 200, '{"type":' * 200, '{"type":"response.append","input":' + "[" * 200 + "]" * 200 + "}"],
)
async def test_deep_json_is_refused(frame):
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.ws.send_message(frame)
        assert (await client.receive())["error"]["code"] in ("json_too_deep", "invalid_json", "invalid_type")
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_an_idle_connection_is_kept(autojump_clock):
    async with open_served() as server, server.connect() as client:
        await trio.sleep(1800)
        await client.create()
        assert (await client.step())[-1]["type"] == "response.done"


async def _open_by_hand(stream: trio.abc.Stream) -> None:
    """A WebSocket handshake whose client will never read a frame or answer a ping by itself."""
    await stream.send_all(
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    answer = b""
    with trio.fail_after(5):
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some(1)


def _client_text(frame: dict[str, object]) -> bytes:
    """A masked text frame; a mask of zeros leaves the payload as it is."""
    payload = json.dumps(frame).encode()
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0xFE]) + len(payload).to_bytes(2, "big")
    return b"\x81" + size + b"\0\0\0\0" + payload
