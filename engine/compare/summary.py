"""From measurements to what may be said: medians, spreads, and differences that are larger than these."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.bench.budgets import Figure
from engine.compare.designs import DESIGNS
from engine.compare.plan import Case, Point
from engine.compare.results import Measurement

Value = Callable[[Measurement], float]


def wall(one: Measurement) -> float:
    """The whole run, ms."""
    return one.wall_ms


def without_tools(one: Measurement) -> float:
    """The run without the time in which nothing was waited for but tools, ms."""
    return one.wall_ms - one.tool_ms


def second_ttft(one: Measurement) -> float:
    """From having a turn's input to its first event, in the second turn: the first one also opens connections, ms."""
    return one.ttft_ms[1]


def last_ttft(one: Measurement) -> float:
    """The same in the last turn, ms."""
    return one.ttft_ms[-1]


def network(one: Measurement) -> float:
    """What the link holds back what the client waits for, ms: round trips, not what bytes take at a bandwidth."""
    return one.num_trips * one.case.point.rtt_ms


def rest(one: Measurement) -> float:
    """What nobody accounts for, ms: framing, events, the client, the scheduler of the machine."""
    return without_tools(one) - network(one) - sum(one.phases_ms.values())


@dataclass(frozen=True)
class Middle:
    """The median of some repetitions and the spread of their middle half."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Middle":
        """Raises ValueError for no values."""
        if len(values) < 2:
            return cls(statistics.median(values), 0.0, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), high - low, len(values))


@dataclass(frozen=True)
class Gain:
    """By what share one design is quicker than another, from repetitions side by side; below 0 it is slower."""

    share: Middle

    @property
    def is_none(self) -> bool:
        """Whether the difference is smaller than its spread, which one repetition does not tell."""
        return self.share.count < 2 or abs(self.share.median) <= self.share.spread

    def __str__(self) -> str:
        return "none" if self.is_none else f"{self.share.median * 100:+.0f} %"


class Summary:
    """All measurements, by case."""

    def __init__(self, measured: Iterable[Measurement]) -> None:
        self._by_case: dict[Case, list[Measurement]] = {}
        for one in sorted(measured, key=lambda one: one.job.repetition):
            self._by_case.setdefault(one.case, []).append(one)

    def __contains__(self, case: object) -> bool:
        return case in self._by_case

    def points(self) -> list[Point]:
        """Where something was measured, in the order in which it first was."""
        return list(dict.fromkeys(case.point for case in self._by_case))

    def runs(self, case: Case) -> list[Measurement]:
        """The repetitions in order. Raises KeyError for what was not measured."""
        return self._by_case[case]

    def designs(self, point: Point) -> list[str]:
        """What was measured there without a switch, in the order of DESIGNS."""
        return [design for design in DESIGNS if Case(point, design) in self]

    def middle(self, case: Case, value: Value) -> Middle:
        """Median and spread of a value. Raises KeyError."""
        return Middle.of([value(one) for one in self.runs(case)])

    def gain(self, case: Case, over: Case, value: Value = without_tools) -> Gain | None:
        """How much quicker `case` is; None when one of them was not measured."""
        if case not in self or over not in self:
            return None
        theirs = {one.job.repetition: value(one) for one in self.runs(over)}
        pairs = [(value(one), theirs[one.job.repetition]) for one in self.runs(case) if one.job.repetition in theirs]
        return Gain(Middle.of([1 - mine / other for mine, other in pairs])) if pairs else None

    def never_slower(self) -> list[Figure]:
        """Append beside chain at every point: at most as slow as the spread allows."""
        figures = []
        for point in self.points():
            for design in ("append", "early"):
                gain = self.gain(Case(point, design), Case(point, "chain"))
                if gain is not None:
                    name = f"{design} over chain, without tools: {written(point)}"
                    figures.append(Figure(name, 1 - gain.share.median, "≤", 1 + gain.share.spread))
        return figures


def written(point: Point) -> str:
    """A point in words."""
    up = f", {point.up_mbit_per_s:g} Mbit/s up" if point.up_mbit_per_s else ""
    return f"{point.tokens_per_second:,g} tokens/s, {point.rtt_ms:g} ms round trip, {point.num_calls} calls{up}"


# What others have published about the same change, to stand beside what is measured here and not to be mixed with it.
PUBLISHED: Final = (
    ("about 40 % less end to end", "from requests with the whole history to the shipped design, OpenAI, April 2026"),
    ("30 to 40 %", "clients that changed over: Cline 39, Vercel's SDK up to 40, Cursor up to 30"),
    ("about 45 % better time to first token", "the sprint on single requests, before the change of design"),
    ("65 to 1,000 tokens/s, bursts of 4,000", "the speeds of the models for which it was done"),
)
PUBLISHED_GAIN: Final = 0.40
