"""The second table: the same designs on a real model, which is held to calling, so that its runs can be compared.

A short task in the small repository. Each turn must call `run` with one of a few commands, and the turn after the last
call must answer with an object that has one choice: a model that is small calls and answers badly when left to itself,
and runs that differ could not be compared. What is measured is the model's own work, prefill and decoding, with the
KV cache of what is kept, and without.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.bench.processes import Served, open_server
from engine.compare.designs import DESIGNS
from engine.compare.played import Course, Item
from engine.compare.results import RunsDiffer, first_difference
from engine.compare.target import Target
from engine.compare.work import TOOL_NAME, Script, Step, Work

COMMANDS: Final = (
    "cat README.md",
    "cat measures/convert.py",
    "cat measures/units.py",
    'grep -rn "offset" measures',
    'grep -rn "_from_base" measures tests',
)
NUM_CALLS: Final = 6
KV_OFF: Final = "append, KV kept off"
ROWS: Final = {"stateless": "stateless", "previous": "previous", "chain": "chain", "append": "append", KV_OFF: "append"}
_TASK: Final = "Some temperatures are converted wrongly. Look into the repository and find out why."
_INSTRUCTIONS: Final = "You are a coding agent. Read the code with the tool `run` until you know what is wrong."
_ANSWER: Final = {
    "type": "object",
    "properties": {"found": {"type": "boolean", "enum": [True]}},
    "required": ["found"],
    "additionalProperties": False,
}
_BYTES_OF_NOTHING: Final = 1  # a KV cache of one byte keeps no paused run
_RUN_TIMEOUT_S: Final = 300


class Turns(msgspec.Struct, frozen=True):
    """One run on a real model. Times are milliseconds."""

    row: str
    wall_ms: float
    ttft_ms: list[float]
    tokens_prefilled: int
    tokens_reused: int
    prefill_ms: float
    sampling_ms: float


class RealModel(msgspec.Struct, frozen=True):
    """What was measured on one model. config: the file of settings that named it, `` for none."""

    model: str
    config: str
    num_calls: int
    runs: list[Turns]


async def measure_real(
    runs: Work,
    rounds: int,
    report: Callable[[str], None],
    *,
    config: Path | None = None,
    num_calls: int = NUM_CALLS,
    rows: Sequence[str] = tuple(ROWS),
) -> RealModel:
    """Runs of `num_calls` calls by each design, after one that warms up. Calls `report` with the row of each.

    runs: the work whose tools have been run. config: a file of settings whose default model is to be measured; None
    for the default local model. rows: keys of ROWS. Raises RunsDiffer.
    """
    measured: list[Turns] = []
    if config is None:  # before its servers would all make it ready at once
        await trio.to_thread.run_sync(resolve, DEFAULT_MODEL, lambda what, share: None)
    async with _open_servers(config, rows) as servers:
        for number in range(rounds + 1):
            expected: list[Item] = []
            for row, server in servers.items():
                course = await _play(server, ROWS[row], runs, num_calls, session=number)
                expected = expected or course.played.items
                if difference := first_difference(expected, course.played.items):
                    raise RunsDiffer(f"{row} on a real model: {difference}")
                if number:
                    measured.append(_turns(row, course))
                report(row)
    return RealModel(config.stem if config else "the default local model", str(config or ""), num_calls, measured)


class _Course(Course):
    """Times the first token of a turn that the model chose. What its grammar forces may come before its input is read,
    as one delta."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, tools_take_time=False)
        self.chosen_ms: list[float] = []
        self._asked_at = 0.0
        self._deltas_at: list[float] = []

    def asks(self) -> None:
        super().asks()
        self._asked_at = time.perf_counter()

    def sees(self, event: Mapping[str, Any]) -> None:
        super().sees(event)
        if event["type"].endswith(".delta"):
            self._deltas_at.append(time.perf_counter())
        elif event["type"] in ("response.done", "response.completed"):
            at = self._deltas_at[min(1, len(self._deltas_at) - 1)]
            self.chosen_ms.append((at - self._asked_at) * 1000)
            self._deltas_at.clear()


@asynccontextmanager
async def _open_servers(config: Path | None, rows: Sequence[str]) -> AsyncIterator[dict[str, Served]]:
    """A server for each row, so that no run takes over the KV that another design's has left.

    The KV of somebody else's service is not ours to keep or to drop.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for number, row in enumerate(rows):
            if row == KV_OFF and config is not None:
                continue
            own = folder / str(number)
            own.mkdir()
            settings = {"max_kv_bytes": _BYTES_OF_NOTHING} if row == KV_OFF else {}
            servers[row] = await stack.enter_async_context(open_server(own, config, **settings))
        yield servers


async def _play(server: Served, design: str, runs: Work, num_calls: int, *, session: int) -> "_Course":
    # Each repetition begins with words of its own, or its runs would take over the KV of those before.
    instructions = f"Session {session}. {_INSTRUCTIONS}"
    script = Script(_TASK, "", (Step("", COMMANDS),), instructions, [_tool()])
    work = Work(script, runs.runs)
    text = {"format": {"type": "json_schema", "name": "answer", "schema": _ANSWER}}
    extra: dict[str, Any] = {"temperature": 0, "text": text, "parallel_tool_calls": False}
    target = Target(server.port, None, script.instructions, script.tools, num_forced=num_calls, extra=extra)
    course = _Course(work)
    with trio.fail_after(_RUN_TIMEOUT_S):
        await DESIGNS[design].play(target, course)
    return course


def _tool() -> dict[str, Any]:
    command = {"type": "string", "enum": list(COMMANDS)}
    parameters = {"type": "object", "properties": {"command": command}, "required": ["command"]}
    return {"type": "function", "name": TOOL_NAME, "description": "Run a command.", "parameters": parameters}


def _turns(row: str, course: "_Course") -> Turns:
    played = course.played
    return Turns(
        row=row,
        wall_ms=round(played.wall_ms, 3),
        ttft_ms=[round(ms, 3) for ms in course.chosen_ms],
        tokens_prefilled=played.counts["tokens_prefilled"],
        tokens_reused=played.counts["tokens_reused"],
        prefill_ms=round(played.phases_ms["prefill"], 3),
        sampling_ms=round(played.phases_ms["sampling"], 3),
    )
