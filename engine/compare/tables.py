"""The comparison as tables: values first, so that a terminal and a page show the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.compare.designs import DESIGNS
from engine.compare.growth import Growth
from engine.compare.plan import AXES, CENTRE, SWITCHES, Axis, Case, Point
from engine.compare.real import ROWS, RealModel, Turns
from engine.compare.results import Header
from engine.compare.summary import Middle, Summary, last_ttft, second_ttft, wall, without_tools, written

BASELINES: Final = ("stateless", "stateless-tls")


@dataclass(frozen=True)
class Grid:
    """A table: what it shows, its columns, its rows."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def grids_of(
    summary: Summary, header: Header, growths: Sequence[Growth] = (), reals: Sequence[RealModel] = ()
) -> Iterator[Grid]:
    """The centre, each axis and switch that was measured, what grows, the real models, the tools."""
    yield centre_grid(summary)
    for axis in AXES:
        if all(summary.designs(point) for point in axis.points):
            yield axis_grid(summary, axis)
    if any(Case(CENTRE, "append", switch) in summary for switch in SWITCHES):
        yield switch_grid(summary)
    if growths:
        yield growth_grid(growths)
    for real in reals:
        yield real_grid(real)
    yield tool_grid(header)


def centre_grid(summary: Summary) -> Grid:
    """Every design at the centre, with and without the tools' time, beside both baselines."""
    head = (
        *("design", "with tools s", "without tools s", "saved over stateless, kept", "… fresh TLS"),
        *("first event ms, turn 2 / last", "sent kB", "received kB", "server CPU ms"),
    )
    return Grid(f"A run of {written(CENTRE)}", head, [_centre_row(summary, key) for key in summary.designs(CENTRE)])


def _centre_row(summary: Summary, design: str) -> tuple[str, ...]:
    case = Case(CENTRE, design)
    return (
        DESIGNS[design].label,
        seconds(summary.middle(case, wall)),
        seconds(summary.middle(case, without_tools)),
        *(saved(summary, case, CENTRE, baseline) for baseline in BASELINES),
        f"{summary.middle(case, second_ttft).median:,.0f} / {summary.middle(case, last_ttft).median:,.0f}",
        f"{summary.middle(case, lambda one: one.bytes_up / 1000).median:,.0f}",
        f"{summary.middle(case, lambda one: one.bytes_down / 1000).median:,.0f}",
        f"{summary.middle(case, lambda one: one.cpu_ms).median:,.0f}",
    )


def axis_grid(summary: Summary, axis: Axis) -> Grid:
    """Seconds at each point of an axis, and what is saved over the baseline with a kept connection."""
    measured = {design for point in axis.points for design in summary.designs(point)}
    rows = [
        (DESIGNS[design].label, *(_axis_cell(summary, Case(point, design)) for point in axis.points))
        for design in DESIGNS
        if design in measured
    ]
    title = (
        f"By {axis.name}: seconds without tools (with them), and what is saved of the former over stateless HTTP, kept"
    )
    return Grid(title, ("design", *(axis.written(point) for point in axis.points)), rows)


def _axis_cell(summary: Summary, case: Case) -> str:
    if case not in summary:
        return ""
    with_tools = summary.middle(case, wall).median / 1000
    text = f"{seconds(summary.middle(case, without_tools))} ({with_tools:.2f})"
    return text if case.design == "stateless" else f"{text} {saved(summary, case, case.point, 'stateless')}"


def switch_grid(summary: Summary) -> Grid:
    """What a run takes with one optimisation less; two of them are designs of their own."""
    pairs = [(switch, Case(CENTRE, "append", switch), Case(CENTRE, "append")) for switch in SWITCHES]
    pairs.append(("early append off", Case(CENTRE, "append"), Case(CENTRE, "early")))
    pairs.append(("persistent connection off", Case(CENTRE, "previous-tls"), Case(CENTRE, "chain")))
    rows = [_switch_row(summary, *pair) for pair in pairs if pair[1] in summary and pair[2] in summary]
    head = ("one less", "of", "without tools s", "slower by", "server CPU ms")
    return Grid(f"One optimisation less, at {written(CENTRE)}", head, rows)


def _switch_row(summary: Summary, name: str, less: Case, whole: Case) -> tuple[str, ...]:
    cpu = [summary.middle(case, lambda one: one.cpu_ms).median for case in (whole, less)]
    gain = summary.gain(less, whole)
    slower = "none" if gain is None or gain.is_none else f"{-gain.share.median * 100:+.0f} %"
    times = seconds(summary.middle(less, without_tools))
    return name, DESIGNS[whole.design].label, times, slower, f"{cpu[0]:,.0f} → {cpu[1]:,.0f}"


def growth_grid(growths: Sequence[Growth]) -> Grid:
    """Server CPU of a turn, by the turn's number."""
    head = ("design", "turns", "first quarter ms", "last quarter ms", "more per turn µs", "correlation with the turn")
    rows = [
        (
            DESIGNS[one.design].label,
            f"{len(one.cpu_ms):,}",
            f"{one.first_ms:.2f}",
            f"{one.last_ms:.2f}",
            f"{one.slope_us:+.2f}",
            f"{one.correlation:+.2f}",
        )
        for one in growths
    ]
    return Grid("Server CPU of a turn", head, rows)


def real_grid(real: RealModel) -> Grid:
    """The designs on a real model."""
    head = ("design", "wall s", "first token ms, turn 2 / last call", "tokens prefilled", "reused", "prefill s")
    by_row = {row: [one for one in real.runs if one.row == row] for row in ROWS}
    rows = [_real_row(row, runs) for row, runs in by_row.items() if runs]
    return Grid(f"A run of {real.num_calls} calls on {real.model}", head, rows)


def _real_row(row: str, runs: list[Turns]) -> tuple[str, ...]:
    first, last = (Middle.of([one.ttft_ms[turn] for one in runs]).median for turn in (1, -2))
    label = DESIGNS[row].label if row in DESIGNS else row
    return (
        label,
        seconds(Middle.of([one.wall_ms for one in runs])),
        f"{first:,.0f} / {last:,.0f}",
        f"{Middle.of([one.tokens_prefilled for one in runs]).median:,.0f}",
        f"{Middle.of([one.tokens_reused for one in runs]).median:,.0f}",
        seconds(Middle.of([one.prefill_ms for one in runs])),
    )


def tool_grid(header: Header) -> Grid:
    """What was fixed before the first measurement, in sums."""
    by_program: dict[str, list[float]] = {}
    for command, run in header.work.runs.items():
        by_program.setdefault(command.partition(" ")[0], []).append(run.seconds)
    rows = [
        (program, f"{len(times)}", f"{sum(times):.2f}", f"{max(times):.2f}") for program, times in by_program.items()
    ]
    head = ("tool", "commands", "seconds in all", "slowest s")
    return Grid("Tools, really run once before the first measurement", head, rows)


def command_grid(header: Header) -> Grid:
    """The same, each command by itself."""
    runs = header.work.runs
    rows = [(command, f"{run.seconds:.4f}", f"{len(run.output):,}") for command, run in runs.items()]
    return Grid("Every command that was run, once", ("command", "seconds", "characters of output"), rows)


def seconds(milliseconds: Middle) -> str:
    """A time with its spread."""
    return f"{milliseconds.median / 1000:.2f} ± {milliseconds.spread / 1000:.2f}"


def saved(summary: Summary, case: Case, point: Point, baseline: str) -> str:
    """What share of the baseline's time is saved; `none` where that is less than the spread."""
    if case.design == baseline:
        return "–"
    gain = summary.gain(case, Case(point, baseline))
    return "" if gain is None else str(gain)
