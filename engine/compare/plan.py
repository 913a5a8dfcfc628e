"""What is measured, and in which order: one axis at a time around the centre, the designs turn by turn."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec


class Point(msgspec.Struct, frozen=True, order=True):
    """One setting of the axes. up_mbit_per_s: from the client to the server; 0 is no limit."""

    tokens_per_second: float = 1_000
    rtt_ms: float = 50
    num_calls: int = 20
    up_mbit_per_s: float = 0

    @property
    def model(self) -> str:
        """The scenario that is played."""
        return f"speed-{self.tokens_per_second:g}-calls-{self.num_calls}"


CENTRE: Final = Point()


class Axis(msgspec.Struct, frozen=True):
    """What changes, in which unit, the field of a point that holds it, and the points in order."""

    name: str
    unit: str
    field: str
    points: tuple[Point, ...]

    def written(self, point: Point) -> str:
        """The point's value on this axis, and what else is not as in the centre."""
        value = getattr(point, self.field)
        if not value and self.field == "up_mbit_per_s":
            return "no limit"
        calls = "" if self.field == "num_calls" or point.num_calls == CENTRE.num_calls else f", {point.num_calls} calls"
        return f"{value:,g} {self.unit}{calls}"


AXES: Final = (
    Axis("speed", "tokens/s", "tokens_per_second", (Point(65, num_calls=5), Point(250), CENTRE, Point(4_000))),
    Axis("round trip", "ms", "rtt_ms", tuple(Point(rtt_ms=rtt) for rtt in (0, 10, 50, 150))),
    Axis("length of the run", "calls", "num_calls", tuple(Point(num_calls=calls) for calls in (5, 20, 60))),
    Axis("bandwidth up", "Mbit/s", "up_mbit_per_s", (CENTRE, Point(up_mbit_per_s=20))),
)

QUICK: Final = ("stateless", "stateless-tls", "previous", "chain", "append", "early")
EVERYWHERE: Final = ("stateless", "stateless-tls", "previous", "previous-tls", "chain", "append", "early")
# Fresh TCP connections lie between kept ones and those with TLS, so they are measured where they matter most.
WITH_ALL: Final = (*EVERYWHERE, "stateless-tcp", "previous-tcp", "inject")

# One optimisation less: a name, and the settings of the server that take it away.
SWITCHES: Final[dict[str, dict[str, object]]] = {
    "token cache off": {"token_cache": "false"},
    "incremental classification off": {"safety_history": "true"},
    "post-inference overlap off": {"ledger_wait": "true"},
}


class Case(msgspec.Struct, frozen=True, order=True):
    """A design at a point. design: a key of DESIGNS; switch: one of SWITCHES, or none."""

    point: Point
    design: str
    switch: str = ""


class Job(msgspec.Struct, frozen=True, order=True):
    """One run to be measured."""

    case: Case
    repetition: int


class Plan(msgspec.Struct, frozen=True):
    """Groups of cases that are measured turn by turn, and how often."""

    groups: tuple[tuple[Case, ...], ...]
    repetitions: int

    def jobs(self) -> Iterator[Job]:
        """All runs, repetition by repetition, so that every case meets every mood of the machine.

        Each repetition begins a group with another case, so that none always follows the same one.
        """
        for repetition in range(self.repetitions):
            for group in self.groups:
                for case in rotated(group, repetition):
                    yield Job(case, repetition)

    def points(self) -> list[Point]:
        """Each point once, in order."""
        return list(dict.fromkeys(case.point for group in self.groups for case in group))

    def switches(self) -> list[str]:
        """The switches that are used, `` for none of them among these."""
        return list(dict.fromkeys(case.switch for group in self.groups for case in group))


def rotated(group: Sequence[Case], by: int) -> tuple[Case, ...]:
    """The same, beginning further on."""
    start = by % len(group)
    return (*group[start:], *group[:start])


def full_plan(repetitions: int) -> Plan:
    """All axes, and the switches at the centre."""
    points = dict.fromkeys(point for axis in AXES for point in axis.points)
    groups = []
    for point in points:
        designs = WITH_ALL if point in (CENTRE, Point(rtt_ms=150)) else EVERYWHERE
        group = [Case(point, design) for design in designs]
        if point == CENTRE:
            group += [Case(point, "append", switch) for switch in SWITCHES]
        groups.append(tuple(group))
    return Plan(tuple(groups), repetitions)


def quick_plan(repetitions: int) -> Plan:
    """The centre alone."""
    return Plan((tuple(Case(CENTRE, design) for design in QUICK),), repetitions)


def estimate_s(case: Case, tokens_per_step: int, tool_seconds: float) -> float:
    """About how long a run takes. tool_seconds: of a call, on average."""
    point = case.point
    trips = {"tcp": 2, "tls": 3}.get(case.design.partition("-")[2], 1)
    sampling = tokens_per_step / point.tokens_per_second if point.tokens_per_second else 0.0
    of_turn = sampling + trips * point.rtt_ms / 1000 + 0.02
    return (point.num_calls + 1) * of_turn + point.num_calls * tool_seconds
