"""Server CPU of a turn against the turn's number: what grows with the history and what does not.

One long run of short turns by each design, the model thinking for no time, no link in between. The tools' outputs are
pieces of code of about sixty tokens, another one for each turn.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from engine.bench.budgets import Figure
from engine.bench.machine import percentile
from engine.bench.processes import Served, open_scripts
from engine.bench.turn import output
from engine.compare.designs import DESIGNS
from engine.compare.measure import settings_of
from engine.compare.played import Course
from engine.compare.target import Target
from engine.compare.work import Script, Step, ToolRun, Work, scenario

# What sends the history again costs a turn what all turns before have cost, so it is given fewer.
TURNS: Final = {"append": 1_000, "chain": 1_000, "stateless": 300}
WARM_UP: Final = 20  # turns that are not counted
_TIMEOUT_S: Final = 600
_MODEL: Final = "turns"


class Growth(msgspec.Struct, frozen=True):
    """cpu_ms: the server's, of each turn in order, after those that warm up."""

    design: str
    cpu_ms: list[float]

    @property
    def first_ms(self) -> float:
        """The median of the first quarter of the turns."""
        return percentile(self.cpu_ms[: self._quarter], 0.5)

    @property
    def last_ms(self) -> float:
        """The median of the last quarter."""
        return percentile(self.cpu_ms[-self._quarter :], 0.5)

    @property
    def slope_us(self) -> float:
        """By how much a turn costs more than the one before it, on the straight line that fits best, microseconds."""
        return statistics.linear_regression(range(len(self.cpu_ms)), self.cpu_ms).slope * 1000

    @property
    def correlation(self) -> float:
        """How well a straight line fits: 1 for one that rises, near 0 for what does not depend on the turn."""
        if len(set(self.cpu_ms)) < 2:
            return 0.0
        return statistics.correlation(range(len(self.cpu_ms)), self.cpu_ms)

    @property
    def _quarter(self) -> int:
        return max(len(self.cpu_ms) // 4, 1)


def long_work(num_turns: int) -> Work:
    """A run of so many calls, each answered by another piece of code."""
    commands = [f"cat part_{number}.py" for number in range(num_turns)]
    steps = tuple(Step("I read the next part.", (command,)) for command in commands)
    runs = {command: ToolRun(output(number), 0.0) for number, command in enumerate(commands)}
    tool = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}
    return Work(Script("Read all parts.", "All parts are read.", steps, "You read code.", [tool]), runs)


class _CountingCourse(Course):
    """Reads the server's clock at the end of each step."""

    def __init__(self, work: Work, server: Served) -> None:
        super().__init__(work, tools_take_time=False)
        self.cpu_ms: list[float] = []
        self._server = server
        self._before = server.cpu_seconds()

    def sees(self, event: Mapping[str, Any]) -> None:
        super().sees(event)
        if event["type"] in ("response.done", "response.completed"):
            now = self._server.cpu_seconds()
            self.cpu_ms.append(round((now - self._before) * 1000, 3))
            self._before = now


async def measure_growth(
    turns: Mapping[str, int], report: Callable[[str], None], *, tokenizer: str = "default"
) -> list[Growth]:
    """One run of so many turns by each design. Calls `report` with a design when it is done."""
    found = []
    work = long_work(max(turns.values()) + WARM_UP)
    with tempfile.TemporaryDirectory() as name:
        for design, num_turns in turns.items():
            folder = Path(name) / design
            folder.mkdir()
            scenarios = {_MODEL: scenario(work.script, num_turns + WARM_UP, 0)}
            async with open_scripts(scenarios, folder, **settings_of(tokenizer=tokenizer)) as server:
                target = Target(server.port, _MODEL, work.script.instructions, work.script.tools)
                course = _CountingCourse(work, server)
                with trio.fail_after(_TIMEOUT_S):
                    await DESIGNS[design].play(target, course)
            found.append(Growth(design, course.cpu_ms[WARM_UP:-1]))
            report(design)
    return found


def budgets(growths: list[Growth]) -> list[Figure]:
    """Flat for what keeps the run, growing for what sends it again."""
    figures = []
    for one in growths:
        is_flat = one.design != "stateless"
        name = f"server CPU of a turn, {DESIGNS[one.design].label}: last quarter of {len(one.cpu_ms):,} over the first"
        figures.append(Figure(name, one.last_ms / one.first_ms, "≤" if is_flat else ">", 1.2))
    return figures
