"""`longloop bench local`: the local model through the served protocol, beside the bare model loop in the same run.

A server and a process with nothing but the model take turns on the same work: a prompt, fifty tokens behind it, and
decoding alone and in batches. What the server adds, and what it gains by keeping KV, is then a ratio of two figures of
the same minute. Of several rounds the quickest counts, on both sides: what else the machine does only adds. Both
compute in bf16 with a thread for each core, since a trial of their own might come out differently.
"""

import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import trio
from trio_websocket import WebSocketConnection

from engine.backends.pretrained import resolve
from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine
from engine.bench.processes import LineReader, open_process, open_server
from engine.bench.sockets import open_socket

TERMINALS: Final = ("response.completed", "response.incomplete", "response.failed", "error")
TEXT: Final = "Note {i}: the quick brown fox jumps over the lazy dog while {i} birds watch from the old oak tree. "
TEXT_TOKENS: Final = 28  # of the default model, where the number has three digits
TEMPLATE_TOKENS: Final = 5  # beyond those that all prompts have in common
ANSWER: Final = "The tool says that {i} of the rows were changed, and that nobody else has looked at them so far. " * 2
TOPICS: Final = ("seas", "woods", "stars", "trains", "cities", "rivers", "tools", "winters")
DECODED: Final = 64
THREADS: Final = os.cpu_count() or 1
FIGURE_S: Final = 900  # for one figure, however slow the machine is


@dataclass(frozen=True)
class LocalFigure:
    """One kind of work. Seconds, served and bare, of the quickest rounds; tokens that either took in or gave."""

    work: str
    tokens: int
    served_s: float
    bare_s: float

    @property
    def ratio(self) -> float:
        """Served over bare."""
        return self.served_s / self.bare_s

    @property
    def per_s(self) -> tuple[float, float]:
        """Tokens per second, served and bare."""
        return self.tokens / self.served_s, self.tokens / self.bare_s


class BareModel:
    """The process with nothing but the model."""

    def __init__(self, process: trio.Process, lines: LineReader) -> None:
        self._process = process
        self._lines = lines

    async def seconds(self, task: str, **fields: int) -> float:
        """Have it do a task."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps({"task": task} | fields).encode() + b"\n")
        return float(await self._lines.next_line())


@asynccontextmanager
async def open_bare_model(folder: Path) -> AsyncIterator[BareModel]:
    """The process, loaded."""
    async with open_process("-m", "engine.bench.bare_model", str(folder), str(THREADS)) as process:
        assert process.stdout is not None
        lines = LineReader(process.stdout)
        with trio.fail_after(FIGURE_S):
            await lines.next_line()
        yield BareModel(process, lines)


@dataclass(frozen=True)
class Step:
    """A step as a client sees it: seconds to its first token and to its end, and its usage."""

    first_s: float
    last_s: float
    response_id: str
    usage: dict[str, Any]

    @property
    def num_new(self) -> int:
        """Tokens of the context whose KV was not there."""
        return int(self.usage["input_tokens"] - self.usage["input_tokens_details"]["cached_tokens"])


async def sample(ws: WebSocketConnection, text: str, max_tokens: int, after: str | None = None) -> Step:
    """One create to its end. Raises RuntimeError when the server refuses or fails it."""
    create = {"type": "response.create", "input": text, "max_output_tokens": max_tokens, "temperature": 0}
    began = time.perf_counter()
    await ws.send_message(json.dumps(create | ({"previous_response_id": after} if after else {})))
    first = None
    while True:
        event = json.loads(await ws.get_message())
        if first is None and event["type"].endswith(".delta"):
            first = time.perf_counter() - began
        if event["type"] in TERMINALS:
            break
    last = time.perf_counter() - began
    response = event.get("response") or {}
    if not response.get("usage"):
        raise RuntimeError(f"the server ended a step with {event}")
    return Step(last if first is None else first, last, response["id"], response["usage"])


async def bench_local(
    model: str,
    histories: list[int],
    batches: list[int],
    rounds: int,
    report: Callable[[LocalFigure], None],
) -> dict[str, Any]:
    """Every figure in turn, each told to `report`."""
    folder = await trio.to_thread.run_sync(resolve, model, lambda *_: None)
    figures: list[LocalFigure] = []

    def found(figure: LocalFigure) -> None:
        figures.append(figure)
        report(figure)

    with tempfile.TemporaryDirectory() as data:
        served = open_server(Path(data), model=folder, dtype="bfloat16", threads=THREADS)
        async with served as server, open_bare_model(folder) as bare:
            async with open_socket(server.port) as ws:
                with trio.fail_after(FIGURE_S):
                    await sample(ws, "Hello.", 2)  # the model is loaded now
            for batch in batches:
                with trio.fail_after(FIGURE_S):
                    found(await _decode(server.port, bare, batch, rounds))
            for length in histories:
                with trio.fail_after(FIGURE_S):
                    async with open_socket(server.port) as ws:
                        for figure in await _resume(ws, bare, length, rounds):
                            found(figure)
    return {
        "bench": "local",
        "budgets": budgets(figures),
        "figures": [asdict(figure) for figure in figures],
        "machine": describe_machine(),
    }


async def _decode(port: int, bare: BareModel, batch: int, rounds: int) -> LocalFigure:
    """Decoding, from each stream's first token to its last."""
    served_s, bare_s = [], []
    for number in range(rounds):
        steps: list[Step] = []
        async with trio.open_nursery() as nursery:
            for stream in range(batch):
                nursery.start_soon(_tell, port, f"{number}. {TOPICS[stream % len(TOPICS)]}", steps)
        # Seconds for as many tokens as the streams gave together, had each given DECODED.
        rate = sum((step.usage["output_tokens"] - 1) / (step.last_s - step.first_s) for step in steps)
        served_s.append(batch * DECODED / rate)
        length = steps[0].usage["input_tokens"]
        bare_s.append(await bare.seconds("decode", batch=batch, length=length, steps=DECODED))
    return LocalFigure(f"decode, {batch} at a time", batch * DECODED, min(served_s), min(bare_s))


async def _tell(port: int, about: str, steps: list[Step]) -> None:
    async with open_socket(port) as ws:
        steps.append(await sample(ws, f"Write a very long story about {about}.", DECODED))


async def _resume(ws: WebSocketConnection, bare: BareModel, length: int, rounds: int) -> list[LocalFigure]:
    """A prompt of about so many tokens, and then several times some fifty more behind it."""
    served_s, bare_s, size, new = [], [], 0, 0
    for number in range(rounds if length < 4_096 else 1):  # a long one takes half a minute
        step = await sample(ws, _text(length, number), 1)
        size = step.num_new
        served_s.append(step.first_s)
        bare_s.append(await bare.seconds("prefill", length=size))
    prompt = LocalFigure(f"prompt of {size:,}", size, min(served_s), min(bare_s))
    served_s, bare_s = [], []
    for number in range(rounds):
        step = await sample(ws, ANSWER.format(i=number), 1, step.response_id)
        new = step.num_new
        served_s.append(step.first_s)
        bare_s.append(await bare.seconds("resume", new=new))
    return [prompt, LocalFigure(f"{new} behind {size:,}", new, min(served_s), min(bare_s))]


def _text(length: int, number: int) -> str:
    """A prompt of `length` new tokens or a few more, that begins as no other length and no other round does."""
    count, rest = divmod(length - TEMPLATE_TOKENS, TEXT_TOKENS)
    notes = (TEXT.format(i=100 + number + i) for i in range(count))
    return f"{length}, {number}: " + "".join(notes) + "and " * rest


# What keeping KV must gain over prefilling everything, by the length of the history (measured: 7, 20, 55).
_KEPT: Final = ((400, 6.0), (1_500, 18.0), (6_000, 50.0))


def budgets(figures: list[LocalFigure]) -> list[Figure]:
    """What the server may add to the bare model, and what kept KV must gain."""
    found = []
    prompt: LocalFigure | None = None
    for figure in figures:
        if figure.work.startswith("decode"):
            is_alone = figure.tokens == DECODED
            found.append(Figure(f"{figure.work}: bare over served", 1 / figure.ratio, "≥", 0.95 if is_alone else 0.92))
        elif figure.work.startswith("prompt"):
            prompt = figure
        elif prompt is not None:
            found.append(Figure(f"{figure.work}: served over bare", figure.ratio, "≤", 1.2))
            least = max((gain for length, gain in _KEPT if prompt.tokens >= length), default=None)
            if least is not None:
                gain = prompt.served_s / figure.served_s
                found.append(Figure(f"{figure.work}: prefilling everything over it", gain, "≥", least))
    return found
