"""`longloop bench memory`: what a paused run costs the server, beside a bare connection.

Both servers are processes; their resident memory is read before and after a number of connections. A run here has 20
items and about 4,000 tokens of output; its KV cache, which lives in the model's process, does not count.
"""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection

from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine
from engine.bench.processes import Served, open_longloop, open_peer
from engine.bench.sockets import open_socket

NUM_CALLS = 9  # with as many messages, their own and the user's: 20 items in all
BUDGET_TOKENS = 4_000
SCENARIO = """
model: memory
pace: {{ttft_ms: 0, tokens_per_second: 0}}
steps:
  - repeat:
      times: {num_calls}
      steps:
        - text: {{tokens: {num_tokens}}}
          calls: [{{name: look, arguments: {{}}}}]
  - text: {{tokens: {num_tokens}}}
    calls: [{{name: look, arguments: {{}}}}]
"""
_ENDS = tuple(
    f'{{"type":"{kind}"' for kind in ("error", "response.failed", "response.incomplete", "response.completed")
)
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes of resident memory per connection, and what a run adds to a bare one."""

    runs: int
    run_tokens: int
    bytes_per_run: float
    bytes_per_bare_connection: float
    extra_bytes_per_run: float
    extra_bytes_per_token: float


async def bench_memory(num_runs: int, num_tokens: int) -> dict[str, Any]:
    """Pause `num_runs` runs of `num_tokens` output tokens and weigh them."""
    short = await _weigh_runs(num_runs, NUM_CALLS + 1)
    long = await _weigh_runs(num_runs, num_tokens)
    bare = await _weigh_bare(num_runs)
    figures = MemoryFigures(
        num_runs, num_tokens, long, bare, long - bare, (long - short) / (num_tokens - NUM_CALLS - 1)
    )
    return {"bench": "memory"} | asdict(figures) | {"budgets": budgets(figures), "machine": describe_machine()}


def budgets(figures: MemoryFigures) -> list[Figure]:
    """What a paused run is held to; the bound was set for runs of one size."""
    is_comparable = figures.run_tokens == BUDGET_TOKENS
    value = figures.extra_bytes_per_run if is_comparable else None
    note = "" if is_comparable else f"set for {BUDGET_TOKENS:,} tokens"
    return [Figure("what a paused run adds to a bare connection", value, "≤", 60_000, "bytes", note)]


async def _weigh_runs(num_runs: int, num_tokens: int) -> float:
    scenario = SCENARIO.format(num_calls=NUM_CALLS - 1, num_tokens=num_tokens // NUM_CALLS)
    with tempfile.TemporaryDirectory() as folder:
        async with open_longloop(scenario, Path(folder)) as server, AsyncExitStack() as stack:
            return await _weigh(server, num_runs, lambda: stack.enter_async_context(_open_paused(server.port)))


async def _weigh_bare(num_runs: int) -> float:
    async with open_peer("echo") as echo, AsyncExitStack() as stack:
        return await _weigh(echo, num_runs, lambda: stack.enter_async_context(_open_bare(echo.port)))


async def _weigh(server: Served, num_runs: int, open_one: Any) -> float:
    """Resident bytes that each of `num_runs` adds. The first tenth warms the server's allocator and is not counted."""
    for _ in range(max(num_runs // 10, 1)):
        await open_one()
    before = server.resident_bytes()
    for _ in range(num_runs):
        await open_one()
    return (server.resident_bytes() - before) / num_runs


@asynccontextmanager
async def _open_bare(port: int) -> AsyncIterator[WebSocketConnection]:
    async with open_socket(port, "/?sizes=64") as ws:
        await ws.send_message("x" * 64)
        await ws.get_message()
        yield ws


@asynccontextmanager
async def _open_paused(port: int) -> AsyncIterator[WebSocketConnection]:
    """A connection whose run has done all its calls but the last and waits for that."""
    async with open_socket(port, "/v1/responses?lifecycle=append") as ws:
        with trio.fail_after(60):
            await ws.send_message(json.dumps({"type": "response.create", "input": "go", "tools": [TOOL]}))
            for number in range(NUM_CALLS):
                done = await _until_done(ws)
                if number == NUM_CALLS - 1:
                    break
                key = done["response"]["pending"][0]["answer_key"]
                item = {"type": "function_call_output", "call_id": key, "output": "ok"}
                await ws.send_message(json.dumps({"type": "response.append", "input": [item]}))
        yield ws


async def _until_done(ws: WebSocketConnection) -> dict[str, Any]:
    while True:
        message = await ws.get_message()
        if message.startswith('{"type":"response.done"'):
            event: dict[str, Any] = json.loads(message)
            return event
        if message.startswith(_ENDS):
            raise RuntimeError(f"the run ended: {message}")
