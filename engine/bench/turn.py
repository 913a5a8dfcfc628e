"""`longloop bench turn`: from an append to the first event of the next step, whatever the history.

The model thinks for no time (script backend), everything around it is real: the frame is parsed and validated, the
output rendered and tokenised with the default model's tokenizer, the event encoded and sent. Beside every turn the same
frame goes to a bare trio-websocket echo that answers with frames of the same sizes. A control with the token cache off
shows what the turn costs when the history is rendered again each time.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
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
model: turns
pace: {ttft_ms: 0, tokens_per_second: 0}
steps:
  - repeat:
      times: 1000000
      steps:
        - calls: [{name: read_file, arguments: {path: src/app.py}}]
"""
TOOL = {
    "type": "function",
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
NAMES = ("add", "scale", "parse", "merge", "encode", "shift", "clamp", "split", "count", "rotate")
WARM_UP = 20  # turns that are not counted


@dataclass(frozen=True)
class TurnFigures:
    """One history. Times in milliseconds; `tokens_touched` and `items_touched` are per turn."""

    history_tokens: int
    history_items: int
    cached: bool
    turns: int
    turn_p50_ms: float
    turn_p99_ms: float
    echo_p50_ms: float
    echo_p99_ms: float
    items_touched: float
    tokens_touched: float

    @property
    def ratio_p50(self) -> float:
        """How many bare echoes a turn costs, in the middle."""
        return self.turn_p50_ms / self.echo_p50_ms

    @property
    def ratio_p99(self) -> float:
        """The same at the 99th percentile."""
        return self.turn_p99_ms / self.echo_p99_ms


def history(num_tokens: int) -> list[dict[str, Any]]:
    """Messages of about 100 tokens each, `num_tokens` in all; every one is different."""
    sentence = "Note {i}: the quick brown fox jumps over the lazy dog while {i} birds watch from the old oak tree. "
    num_items = max(num_tokens // 100, 1)
    return [{"role": "user", "content": sentence.format(i=i) * 3} for i in range(num_items)]


def output(number: int) -> str:
    """A piece of code of about 60 tokens, as a tool might read it; another one for each number."""
    pick = random.Random(number)
    name, other = pick.sample(NAMES, 2)
    tag, given, expected = f"{pick.getrandbits(20):x}", pick.randrange(10_000), pick.randrange(10_000)
    code = f"def {name}_{tag}(value, limit={given}):\n    return {other}(value) % limit\n\n\n"
    return code + f"def test_{name}_{tag}():\n    assert {name}_{tag}({given}) == {expected}\n"


async def measure(longloop: Served, echo: Served, num_tokens: int, turns: int, *, cached: bool) -> TurnFigures:
    """Run `turns` turns on a history of about `num_tokens` and as many echoes, turn by turn."""
    async with open_socket(longloop.port, "/v1/responses?lifecycle=append") as ours:
        items = history(num_tokens)
        await ours.send_message(json.dumps({"type": "response.create", "input": items, "tools": [TOOL]}))
        done = await until_done(ours)
        sizes = await _frame_sizes(ours, done)
        query = ",".join(map(str, sizes.sizes))
        async with open_socket(echo.port, f"/?sizes={query}") as bare:
            samples = await _alternate(ours, bare, sizes.done, len(sizes.sizes), turns)
    return TurnFigures(
        history_tokens=sizes.done["response"]["usage"]["input_tokens"],
        history_items=len(items),
        cached=cached,
        turns=turns,
        turn_p50_ms=percentile(samples.turns, 0.5),
        turn_p99_ms=percentile(samples.turns, 0.99),
        echo_p50_ms=percentile(samples.echoes, 0.5),
        echo_p99_ms=percentile(samples.echoes, 0.99),
        items_touched=samples.items / turns,
        tokens_touched=samples.tokens / turns,
    )


@dataclass
class _Samples:
    turns: list[float]
    echoes: list[float]
    items: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class _Sizes:
    sizes: list[int]  # of the frames up to the first event, characters
    done: dict[str, Any]


def append_frame(done: dict[str, Any], number: int) -> str:
    """An append that answers the call which a `response.done` waits for, with another text for each number."""
    key = done["response"]["pending"][0]["answer_key"]
    item = {"type": "function_call_output", "call_id": key, "output": output(number)}
    return json.dumps({"type": "response.append", "input": [item]})


async def _frame_sizes(ws: WebSocketConnection, done: dict[str, Any]) -> _Sizes:
    """Do one turn and note how long the frames are that the client waits for."""
    await ws.send_message(append_frame(done, -1))
    sizes = []
    while True:
        message = await ws.get_message()
        sizes.append(len(message))
        if '"response.append.accepted"' not in message[:60]:
            return _Sizes(sizes, await until_done(ws))


async def _alternate(
    ours: WebSocketConnection, bare: WebSocketConnection, done: dict[str, Any], num_frames: int, turns: int
) -> _Samples:
    samples = _Samples([], [])
    for number in range(turns + WARM_UP):
        frame = append_frame(done, number)
        echo_ms = await _time(bare, frame, num_frames)
        turn_ms = await _time(ours, frame, num_frames)
        done = await until_done(ours)
        if number >= WARM_UP:
            samples.echoes.append(echo_ms)
            samples.turns.append(turn_ms)
            step = done["response"]["timing"]["step"]
            samples.items += step["items_new"]
            samples.tokens += step["tokens_new"]
    return samples


async def _time(ws: WebSocketConnection, frame: str, num_frames: int) -> float:
    """Milliseconds from sending `frame` to having `num_frames` answers."""
    start = time.perf_counter_ns()
    await ws.send_message(frame)
    for _ in range(num_frames):
        await ws.get_message()
    return (time.perf_counter_ns() - start) / 1e6


async def until_done(ws: WebSocketConnection) -> dict[str, Any]:
    """The next `response.done`. Raises RuntimeError when the run ends otherwise."""
    while True:
        event: dict[str, Any] = json.loads(await ws.get_message())
        if event["type"] == "response.done":
            return event
        if event["type"] in ("error", "response.failed", "response.incomplete", "response.completed"):
            raise RuntimeError(f"the run ended: {event}")


def histories_up_to(longest: int) -> list[int]:
    """Histories to measure, in tokens: powers of ten from 1,000 on, and `longest`."""
    powers = [10**exponent for exponent in range(3, 10)]
    return [power for power in powers if power < longest] + [longest]


async def bench_turn(
    histories: list[int],
    turns: int,
    control_turns: int,
    report: Callable[[TurnFigures], None],
    *,
    tokenizer: str = "default",
) -> dict[str, Any]:
    """All histories, then the control on the shortest and the longest. Calls `report` after each.

    tokenizer: a value of the setting of that name.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for cached in (True, False):
            chosen = histories if cached else sorted({histories[0], histories[-1]})
            settings = {"tokenizer": tokenizer, "token_cache": str(cached).lower()}
            async with open_peer("echo") as echo, open_longloop(SCENARIO, Path(folder), **settings) as server:
                for num_tokens in chosen:
                    count = turns if cached else control_turns
                    with trio.fail_after(600):
                        figures.append(await measure(server, echo, num_tokens, count, cached=cached))
                    report(figures[-1])
    return summarise(figures)


def summarise(figures: list[TurnFigures]) -> dict[str, Any]:
    """The machine-readable result: what the budgets name, and every measurement."""
    return {
        "bench": "turn",
        "budgets": budgets(figures),
        "figures": [asdict(figure) for figure in figures],
        "machine": describe_machine(),
    }


def budgets(figures: list[TurnFigures]) -> list[Figure]:
    """What a turn is held to. Its control, which keeps no tokens, must break the bound that the turn keeps."""
    cached = [figure for figure in figures if figure.cached]
    control = [figure for figure in figures if not figure.cached]
    first, last = cached[0], cached[-1]
    lengths = f"{last.history_tokens:,} over {first.history_tokens:,} tokens of history"
    note = "needs two histories" if first is last else ""
    return [
        Figure("append to first event, over a bare echo (p50)", first.ratio_p50, "≤", 2),
        Figure("append to first event, over a bare echo (p99)", first.ratio_p99, "≤", 3),
        Figure(f"the same, {lengths}", _growth(cached), "≤", 1.1, note=note),
        Figure(f"{lengths}, without the token cache", _growth(control), ">", 1.1, note=note),
    ]


def _growth(figures: list[TurnFigures]) -> float | None:
    """The turn at the longest history over the one at the shortest; None when they are the same."""
    return figures[-1].turn_p50_ms / figures[0].turn_p50_ms if len(figures) > 1 else None
