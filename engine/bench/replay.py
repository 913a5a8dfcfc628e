"""`longloop bench peers`: an agent run of ten turns, on longloop and on other servers of the same model.

Each turn brings a tool's output of some three hundred tokens and has 32 sampled. longloop gets what is new, the others
get the whole history, which is how their clients work, and may find what they know of it. The servers take turns on
each turn, so that what else the machine does hits them alike; only one of them computes at a time.
"""

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import httpx2
import trio
from trio_websocket import WebSocketConnection

from engine.backends.pretrained import resolve
from engine.bench.budgets import Figure
from engine.bench.engines import Engine, NotMeasured, gguf_of, open_llama_cpp, open_transformers
from engine.bench.local import sample
from engine.bench.machine import describe_machine
from engine.bench.processes import open_server
from engine.bench.sockets import open_socket

SAMPLED: Final = 32
TURN_S: Final = 300
_WORDS_A_TOKEN: Final = 0.72  # of the text below, in SmolLM2's vocabulary
_TEXT: Final = "row {i} of the table says that the file was changed by tool {i} and has {i} lines of code in it"
_WORDS: Final = _TEXT.split()


@dataclass(frozen=True)
class Turn:
    """Seconds from asking to the first token and to the last."""

    first_s: float
    last_s: float


@dataclass(frozen=True)
class Replay:
    """One server's turns, or why there are none."""

    name: str
    turns: list[Turn]
    note: str = ""

    @property
    def total_s(self) -> float:
        """What the run took in all."""
        return sum(turn.last_s for turn in self.turns)


class Conversation(Protocol):
    """One run on one server."""

    async def turn(self, text: str) -> Turn:
        """Give a text and sample."""


class OurConversation:
    """What is new goes to the response before."""

    def __init__(self, ws: WebSocketConnection) -> None:
        self._ws = ws
        self._last: str | None = None

    async def turn(self, text: str) -> Turn:
        step = await sample(self._ws, text, SAMPLED, self._last)
        self._last = step.response_id
        return Turn(step.first_s, step.last_s)


class ChatConversation:
    """The whole history goes along each time."""

    def __init__(self, engine: Engine, http: httpx2.AsyncClient) -> None:
        self._engine = engine
        self._http = http
        self._messages: list[dict[str, str]] = []

    async def turn(self, text: str) -> Turn:
        self._messages.append({"role": "user", "content": text})
        body = {
            "model": self._engine.model,
            "messages": self._messages,
            "max_tokens": SAMPLED,
            "temperature": 0,
            "stream": True,
        }
        began, first, said = time.perf_counter(), None, ""
        async with self._http.stream("POST", f"{self._engine.base_url}/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if piece := _content(line):
                    first = time.perf_counter() - began if first is None else first
                    said += piece
        last = time.perf_counter() - began
        self._messages.append({"role": "assistant", "content": said})
        return Turn(last if first is None else first, last)


def _content(line: str) -> str:
    """The text in a line of an event stream, if there is any."""
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return ""
    choices = json.loads(data).get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


def text_of(num_tokens: int, number: int) -> str:
    """A tool's output of about so many tokens; another one for each number."""
    words = [_WORDS[index % len(_WORDS)] for index in range(int(num_tokens * _WORDS_A_TOKEN))]
    return " ".join(words).format(i=number)


async def bench_peers(
    model: str,
    *,
    initial: int,
    grow: int,
    turns: int,
    others: Sequence[Engine],
    report: Callable[[int, list[Replay]], None],
) -> dict[str, Any]:
    """All servers on the same run. Calls `report` after each turn.

    initial, grow: tokens of the first and of each further text. others: servers that are running already.
    """
    folder = await trio.to_thread.run_sync(resolve, model, lambda *_: None)
    async with AsyncExitStack() as stack:
        port = await _open_ours(stack, folder)
        ws = await stack.enter_async_context(open_socket(port))
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=TURN_S))
        conversations: dict[str, Conversation] = {"longloop": OurConversation(ws)}
        absent: list[Replay] = []
        for name, opened in _peers(model, folder):
            try:
                engine = await stack.enter_async_context(opened())
            except NotMeasured as reason:
                absent.append(Replay(name, [], f"not measured: {reason}"))
            else:
                conversations[name] = ChatConversation(engine, http)
        conversations |= {engine.name: ChatConversation(engine, http) for engine in others}
        replays = {name: Replay(name, []) for name in conversations}
        await _warm_up(port, conversations, http)
        for number in range(turns):
            text = text_of(grow if number else initial, number)
            for name, conversation in conversations.items():
                with trio.fail_after(TURN_S):
                    replays[name].turns.append(await conversation.turn(text))
            report(number, [*replays.values()])
    found = [*replays.values(), *absent]
    return {
        "bench": "peers",
        "budgets": budgets(found),
        "replays": [asdict(replay) | {"total_s": replay.total_s} for replay in found],
        "machine": describe_machine(),
    }


async def _open_ours(stack: AsyncExitStack, folder: Path) -> int:
    data = stack.enter_context(tempfile.TemporaryDirectory())
    return (await stack.enter_async_context(open_server(Path(data), model=folder))).port


def _peers(model: str, folder: Path) -> list[tuple[str, Callable[[], Any]]]:
    return [
        ("transformers serve", partial(open_transformers, folder)),
        ("llama.cpp", partial(_open_llama_cpp, model)),
    ]


@asynccontextmanager
async def _open_llama_cpp(model: str) -> AsyncIterator[Engine]:
    with gguf_of(model) as file:
        async with open_llama_cpp(file) as engine:
            yield engine


async def _warm_up(port: int, conversations: dict[str, Conversation], http: httpx2.AsyncClient) -> None:
    """A short run on each server: models are loaded, kernels chosen."""
    async with open_socket(port) as ws:
        await OurConversation(ws).turn("Hello.")
    for conversation in conversations.values():
        if isinstance(conversation, ChatConversation):
            with trio.fail_after(TURN_S):
                await ChatConversation(conversation._engine, http).turn("Hello.")


# How many times as quick the first token of the last turn must be (measured for ten turns of 300: 7.1 and 2.2).
_LEAST: Final = {"transformers serve": 6.5, "llama.cpp": 2.0}


def budgets(replays: Sequence[Replay]) -> list[Figure]:
    """What longloop must gain over each, at the last turn and over all."""
    ours = replays[0]
    found = []
    for other in replays[1:]:
        last = other.turns[-1].first_s / ours.turns[-1].first_s if other.turns else None
        found.append(
            Figure(
                f"first token of the last turn: {other.name} over longloop",
                last,
                "≥",
                _LEAST.get(other.name, 1.0),
                note=other.note,
            )
        )
    return found


def middle_ratio(ours: Replay, other: Replay) -> float:
    """How many times as long the other's first tokens took, in the middle over the turns after the first."""
    pairs = list(zip(ours.turns, other.turns, strict=True))
    return median(theirs.first_s / own.first_s for own, theirs in pairs[1:] or pairs)
