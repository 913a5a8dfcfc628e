"""A server that is killed, at any moment, while clients run: what they have seen is in its ledger, once.

`LONGLOOP_SOAK_KILLS=200 pytest tests/test_kills.py` kills it ten times as often as a usual run.
"""

import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from trio_websocket import ConnectionClosed, HandshakeError

from engine.bench.processes import Served, open_longloop
from engine.bench.sockets import open_socket
from engine.ledger_reader import open_ledger_reader
from engine.settings import Settings
from engine.sqlite_ledger import open_ledger

NUM_KILLS = int(os.environ.get("LONGLOOP_SOAK_KILLS", "20"))
NUM_CLIENTS = 3
SCENARIO = """
model: work
steps:
  - repeat: {times: 3, steps: [{text: I look., calls: [{name: look, arguments: {n: 1}}]}]}
  - text: Done.
"""
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
TERMINALS = ("response.done", "response.completed")

Segment = tuple[str, int]
Tokens = tuple[int, int, int]


async def work(port: int, seen: dict[Segment, Tokens], first: trio.Event) -> None:
    """Run after run on one connection, until the server is gone; what each terminal tells goes into `seen`."""
    with suppress(ConnectionClosed, HandshakeError, OSError):
        async with open_socket(port, "/v1/responses?lifecycle=append") as ws:
            steps: Counter[str] = Counter()
            frame: dict[str, Any] = {"type": "response.create", "input": "go", "tools": [TOOL]}
            while True:
                await ws.send_message(json.dumps(frame))
                event = json.loads(await ws.get_message())
                while event["type"] not in TERMINALS:
                    assert event["type"] not in ("error", "response.failed", "response.incomplete"), event
                    event = json.loads(await ws.get_message())
                response = event["response"]
                seen[response["id"], steps[response["id"]]] = tokens_of(response["usage"])
                steps[response["id"]] += 1
                first.set()
                frame = {"type": "response.create", "input": "go", "tools": [TOOL]}
                if pending := response.get("pending"):
                    outputs = [
                        {"type": "function_call_output", "call_id": call["answer_key"], "output": "x"}
                        for call in pending
                    ]
                    frame = {"type": "response.append", "input": outputs}


def tokens_of(usage: dict[str, Any]) -> Tokens:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


async def kill_while_working(server: Served, delay_s: float, seen: dict[Segment, Tokens]) -> None:
    first = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(NUM_CLIENTS):
            nursery.start_soon(work, server.port, seen, first)
        await first.wait()
        await trio.sleep(delay_s)
        server.process.kill()


async def test_segments_that_clients_saw_are_in_the_ledger_once(tmp_path: Path) -> None:
    """P105"""
    chance, seen = random.Random(), dict[Segment, Tokens]()
    for _ in range(NUM_KILLS):
        with trio.fail_after(60):
            async with open_longloop(SCENARIO, tmp_path, ledger_commit_ms=chance.choice([0, 20, 10_000])) as server:
                await kill_while_working(server, chance.uniform(0, 0.3), seen)
    folder = tmp_path / "data"
    recorded = Counter[Segment]()
    counts = dict[Segment, Tokens]()
    async with open_ledger(Settings(data_dir=folder)):
        with open_ledger_reader(folder) as reader:
            for row in reader.segments():
                segment = row["response_id"], row["segment"]
                recorded[segment] += 1
                counts[segment] = row["input_tokens"], row["cached_tokens"], row["output_tokens"]
    assert len(seen) >= NUM_KILLS
    assert {segment: (recorded[segment], counts.get(segment)) for segment in seen} == {
        segment: (1, tokens) for segment, tokens in seen.items()
    }
    # What was recorded and not seen was on its way: one step of each client when the server was killed.
    assert set(recorded.values()) == {1}
    assert len(recorded) - len(seen) <= NUM_KILLS * NUM_CLIENTS
