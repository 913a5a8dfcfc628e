"""`longloop bench stream`: token events per second on one connection, beside bare sends of the same frame.

The script backend gives tokens as fast as they are taken. Both servers are processes of their own, the client is the
same for both, and they take turns, so that what the machine does to one it does to the other.
"""

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection

from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine, percentile
from engine.bench.processes import Served, open_longloop, open_peer
from engine.bench.sockets import open_socket

SCENARIO = """
model: stream
pace: {{ttft_ms: 0, tokens_per_second: 0}}
steps:
  - text: {{tokens: {num_tokens}}}
"""


@dataclass(frozen=True)
class StreamFigures:
    """Medians over the rounds, in frames per second."""

    events: int
    rounds: int
    events_per_s: float
    bare_per_s: float
    ratio: float


async def bench_stream(num_events: int, rounds: int) -> dict[str, Any]:
    """Stream `num_events` token events, `rounds` times, from longloop and from the bare peer in turn."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = SCENARIO.format(num_tokens=num_events)
        async with open_peer("blast") as blast, open_longloop(scenario, Path(folder)) as server:
            rates = [await _round(server, blast, num_events) for _ in range(rounds)]
    ours, bare = [rate[0] for rate in rates], [rate[1] for rate in rates]
    ratio = percentile([mine / theirs for mine, theirs in rates], 0.5)
    figures = StreamFigures(num_events, rounds, percentile(ours, 0.5), percentile(bare, 0.5), ratio)
    return {"bench": "stream"} | asdict(figures) | {"budgets": budgets(figures), "machine": describe_machine()}


def budgets(figures: StreamFigures) -> list[Figure]:
    """What the rate is held to."""
    return [Figure("token events over bare sends of the same frame", figures.ratio, "≥", 0.5)]


async def _round(server: Served, blast: Served, num_events: int) -> tuple[float, float]:
    """Frames per second of ours and of the bare peer."""
    with trio.fail_after(300):
        async with open_socket(server.port) as ws:
            await ws.send_message(json.dumps({"type": "response.create", "input": "go"}))
            frame, ours = await _count_deltas(ws)
        async with open_socket(blast.port, f"/?count={num_events}") as ws:
            await ws.send_message(frame)
            bare = await _count_until(ws, "end")
    return ours, bare


async def _count_deltas(ws: WebSocketConnection) -> tuple[str, float]:
    """A delta frame, and how many came per second. Frames are not parsed: the client would be the slower half."""
    while ".delta" not in (frame := await ws.get_message()):
        if '"error"' in frame[:40]:
            raise RuntimeError(frame)
    start, count = time.perf_counter(), 0
    while ".delta" in (message := await ws.get_message())[:60]:
        frame, count = message, count + 1
    return frame, count / (time.perf_counter() - start)


async def _count_until(ws: WebSocketConnection, end: str) -> float:
    await ws.get_message()
    start, count = time.perf_counter(), 0
    while await ws.get_message() != end:
        count += 1
    return count / (time.perf_counter() - start)
