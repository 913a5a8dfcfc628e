"""`longloop bench remote`: what the server itself costs when a service does the sampling.

A server with one of its routes, a service that infers nothing, a client: three processes. What is counted is
the processor time of the server's process, all of it: HTTP from the service, parsing, the response's events, the
WebSocket to the client.

- A token: the service gives 3,000 a second on one stream, as the fastest do.
- A turn: an append of fifty words to histories of 1,000 to 100,000 tokens, answered with a few. Every body holds
  everything, since the API wants that; what is left that grows is the copying of these bytes.
"""

import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import trio
from trio_websocket import WebSocketConnection

from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine, percentile
from engine.bench.processes import Served, open_server, open_service
from engine.bench.service import MODEL
from engine.bench.sockets import open_socket

RATE: Final = 3_000  # tokens a second
HISTORIES: Final = (1_000, 10_000, 100_000)
_WORDS: Final = (  # a token each, for most tokenizers
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many"
)
_WARM_UP: Final = 5  # turns that are not counted
_ANSWER: Final = 4  # tokens of a turn's answer
_ENCODINGS: Final = {"JSON": False, "msgpack + gzip": True}


@dataclass(frozen=True)
class TokenFigures:
    """Medians over the rounds. rate: tokens a second that came."""

    tokens: int
    rounds: int
    rate: float
    cpu_us_per_token: float


@dataclass(frozen=True)
class TurnFigures:
    """One history in one encoding; medians over the turns. cpu_ms: of the server."""

    encoding: str
    history_tokens: int
    turns: int
    cpu_ms: float
    body_bytes: float


async def bench_remote(
    num_tokens: int,
    rounds: int,
    turns: int,
    longest: int,
    report: Callable[[TurnFigures], None],
    *,
    tokenizer: str = "default",
) -> dict[str, Any]:
    """Both measurements; `report` is called with each history of each encoding.

    num_tokens: of a round. longest: history in tokens. tokenizer: a value of the setting of that name; empty for the
    chat route, whose tokens are words.
    """
    histories = [history for history in HISTORIES if history <= longest]
    with tempfile.TemporaryDirectory() as folder:
        async with open_service() as service:
            tokens = await _measure_tokens(service, Path(folder), num_tokens, rounds, tokenizer)
            figures: list[TurnFigures] = []
            for encoding, is_small in _ENCODINGS.items():
                switches = {"upstream_msgpack": str(is_small).lower(), "upstream_gzip": str(is_small).lower()}
                async with _open(service, Path(folder), _ANSWER, 0, tokenizer=tokenizer, **switches) as server:
                    for one in await _measure_turns(service, server, encoding, histories, turns):
                        figures.append(one)
                        report(one)
    return {
        "bench": "remote",
        "tokens": asdict(tokens),
        "figures": [asdict(one) for one in figures],
        "budgets": budgets(tokens, figures),
        "machine": describe_machine(),
    }


def budgets(tokens: TokenFigures, figures: list[TurnFigures]) -> list[Figure]:
    """What a token may take, and how a turn may grow."""
    found = [Figure(f"a token at {tokens.rate:,.0f} a second", tokens.cpu_us_per_token, "≤", 100, "µs")]
    for encoding in _ENCODINGS:
        of_encoding = [one for one in figures if one.encoding == encoding]
        first, last = of_encoding[0], of_encoding[-1]
        name = f"a turn with {encoding}: {last.history_tokens:,} over {first.history_tokens:,} tokens of history"
        is_same = first is last
        value = None if is_same else last.cpu_ms / first.cpu_ms
        found.append(Figure(name, value, "≤", 1.2, note="needs two histories" if is_same else ""))
    return found


@asynccontextmanager
async def _open(service: Served, folder: Path, count: int, rate: float, **settings: Any) -> AsyncIterator[Served]:
    """A server over the service, which gives `count` ids a turn, `rate` a second."""
    url = f"http://127.0.0.1:{service.port}/tokens/{count}/rate/{rate:g}/v1"
    async with open_server(folder, backend="cerebras", base_url=url, model=MODEL, store="none", **settings) as server:
        yield server


# --- a token


async def _measure_tokens(service: Served, folder: Path, num_tokens: int, rounds: int, tokenizer: str) -> TokenFigures:
    costs, rates = [], []
    async with _open(service, folder, num_tokens, RATE, tokenizer=tokenizer) as server:
        for _ in range(rounds + 1):
            async with open_socket(server.port) as ws:
                cpu, begin = server.cpu_seconds(), time.perf_counter()
                await ws.send_message(json.dumps({"type": "response.create", "input": "Go."}))
                await _until(ws, '"response.completed"')
                rates.append(num_tokens / (time.perf_counter() - begin))
                costs.append((server.cpu_seconds() - cpu) / num_tokens * 1e6)
    del costs[0], rates[0]  # the first one warms it up
    return TokenFigures(num_tokens, rounds, percentile(rates, 0.5), percentile(costs, 0.5))


async def _until(ws: WebSocketConnection, type_: str) -> None:
    """Frames are not parsed: the client would be the slower half."""
    with trio.fail_after(300):
        while type_ not in (message := (await ws.get_message())[:400])[:60]:
            if '"error"' in message[:60] or '"response.failed"' in message[:60]:
                raise RuntimeError(message)


# --- a turn


async def _measure_turns(
    service: Served, server: Served, encoding: str, histories: list[int], turns: int
) -> list[TurnFigures]:
    """The histories take turns, so that what the machine does to one it does to the others."""
    costs: dict[int, list[float]] = {history: [] for history in histories}
    sizes: dict[int, list[float]] = {history: [] for history in histories}
    async with AsyncExitStack() as stack:
        sockets = {history: await stack.enter_async_context(_open_run(server, history)) for history in histories}
        for _ in range(turns + _WARM_UP):
            for history, ws in sockets.items():
                cpu = server.cpu_seconds()
                await ws.send_message(_APPEND)
                await _until(ws, '"response.done"')
                costs[history].append((server.cpu_seconds() - cpu) * 1e3)
                sizes[history].append(await _last_body_bytes(service))
    return [
        TurnFigures(
            encoding, history, turns, percentile(costs[history][_WARM_UP:], 0.5), percentile(sizes[history], 0.5)
        )
        for history in histories
    ]


@asynccontextmanager
async def _open_run(server: Served, history: int) -> AsyncIterator[WebSocketConnection]:
    """A run that waits for its next message, behind a history of about so many tokens."""
    async with open_socket(server.port, "/v1/responses?lifecycle=append") as ws:
        await ws.send_message(json.dumps({"type": "response.create", "keep_open": True, "input": _text(history)}))
        await _until(ws, '"response.done"')
        yield ws


def _text(num_words: int) -> str:
    rng = random.Random(num_words)
    return " ".join(rng.choices(_WORDS.split(), k=num_words))


async def _last_body_bytes(service: Served) -> float:
    async with await trio.open_tcp_stream("127.0.0.1", service.port) as stream:
        await stream.send_all(b"GET /bytes HTTP/1.1\r\nhost: bench\r\n\r\n")
        answer = b"".join([part async for part in stream])
    return float(answer.partition(b"\r\n\r\n")[2])


_APPEND: Final = json.dumps(
    {"type": "response.append", "input": [{"type": "message", "role": "user", "content": _text(50)}]}
)
