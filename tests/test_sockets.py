"""A real server process over real sockets, with peers that mean ill: it stays up and other runs go on."""

import json
import os
import random
import socket
import struct
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed

from engine.bench.sockets import open_socket
from tests.peers.server import ServerProcess, open_server
from tests.served import FUNCTION, TWO_CALLS, Client, pending

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
NUM_CONNECTS = int(os.environ.get("LONGLOOP_SOAK_CONNECTS", "1000"))


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "calls.yaml"
    file.write_text(TWO_CALLS)
    return f"script:{file}"


async def a_run_works(server: ServerProcess) -> None:
    """One whole run on a fresh connection."""
    with trio.fail_after(10):
        async with open_socket(server.port) as ws:
            client = Client(ws)
            await client.create()
            keys = pending(await client.step())
            await client.answer((keys[0], "a"), (keys[1], "b"))
            assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_thousand_connects_and_drops_harm_nobody(scenario, tmp_path):
    async with open_server(scenario, tmp_path / "log") as server, open_socket(server.port) as ws:
        client = Client(ws)
        await client.create()
        keys = pending(await client.step())
        pick = random.Random(1)
        for number in range(NUM_CONNECTS):
            await _connect_and_drop(server.port, pick.randrange(len(HANDSHAKE) + 1), reset=bool(number % 2))
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"
        await a_run_works(server)


async def _connect_and_drop(port: int, num_bytes: int, *, reset: bool) -> None:
    """Send a beginning of a handshake and go, with FIN or RST."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if reset:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        await stream.send_all(HANDSHAKE[:num_bytes])
    finally:
        await trio.aclose_forcefully(stream)


async def test_a_frame_of_60_mib_is_read_and_refused_by_name(scenario, tmp_path):
    async with open_server(scenario, tmp_path / "log") as server:
        with trio.fail_after(60):
            async with open_socket(server.port) as ws:
                client = Client(ws)
                await client.create()
                keys = pending(await client.step())
                item = {"type": "function_call_output", "call_id": "call_x", "output": "x" * (60 << 20)}
                await client.send("response.append", input=[item])
                error = await client.receive()
                assert error["error"]["param"] == "input[0].call_id"
                await client.answer((keys[0], "a"), (keys[1], "b"))
                assert (await client.step())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x82\0\0\0\0\xff\xfe",  # text that is not UTF-8
        b"\x81\x02{}",  # not masked
        b"\xf1\x80\0\0\0\0",  # reserved bits
        b"\x8f\x80\0\0\0\0",  # unknown opcode
        b"\x89\xfe\x00\x7f\0\0\0\0" + b"x" * 127,  # a ping too long
        b"\x80\x80\0\0\0\0",  # a continuation of nothing
        b"\x88\x81\0\0\0\0x",  # a close with half a code
    ],
)
async def test_frames_that_are_none_close_their_connection_alone(scenario, tmp_path, data):
    async with open_server(scenario, tmp_path / "log") as server:
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            await stream.send_all(HANDSHAKE)
            assert b"101" in await stream.receive_some()
            await stream.send_all(data)
            with trio.fail_after(10):
                while await stream.receive_some():
                    pass
        await a_run_works(server)


async def test_frames_cut_at_every_byte_harm_nobody(scenario, tmp_path):
    frame = json.dumps({"type": "response.create", "input": "go", "tools": [FUNCTION]}).encode()
    data = HANDSHAKE + b"\x81\xfe" + len(frame).to_bytes(2, "big") + b"\0\0\0\0" + frame
    async with open_server(scenario, tmp_path / "log") as server:
        for cut in range(len(HANDSHAKE), len(data) + 1, 3):
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            await stream.send_all(data[:cut])
            await trio.aclose_forcefully(stream)
        await a_run_works(server)


async def test_a_half_open_socket_is_found_by_its_pings(scenario, tmp_path):
    async with open_server(
        scenario, tmp_path / "log", ping_every_s=0.2, pong_timeout_s=0.2, close_timeout_s=0.2
    ) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(HANDSHAKE)
        with trio.fail_after(5):
            while await stream.receive_some():  # pings come, none is answered
                pass
        await stream.aclose()


async def test_sigterm_ends_a_paused_run_by_closing_and_the_process(scenario, tmp_path):
    async with open_server(scenario, tmp_path / "log") as server, open_socket(server.port) as ws:
        client = Client(ws)
        await client.create()
        await client.step()
        server.terminate()
        with trio.fail_after(5), pytest.raises(ConnectionClosed) as closed:
            await ws.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 1012


async def test_a_second_signal_cuts_the_drain_short(tmp_path):  # P38
    file = tmp_path / "endless.yaml"
    file.write_text("model: endless\npace: {tokens_per_second: 50}\nsteps:\n  - text: {words: 100000}\n")
    settings = {"drain_s": 60, "close_timeout_s": 1}
    async with open_server(f"script:{file}", tmp_path / "log", **settings) as server, open_socket(server.port) as ws:
        client = Client(ws)
        await client.create()
        await client.until("response.output_text.delta")
        server.terminate()
        await client.until("response.output_text.delta")  # it goes on sampling
        server.kill_softly()
        with trio.fail_after(4), pytest.raises(ConnectionClosed):
            while True:
                await ws.get_message()
