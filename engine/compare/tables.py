"""The comparison as tables of a terminal."""

from collections.abc import Iterator

from rich.table import Table

from engine.compare.designs import DESIGNS
from engine.compare.plan import AXES, CENTRE, SWITCHES, Axis, Case, Point
from engine.compare.results import Header
from engine.compare.summary import Middle, Summary, last_ttft, second_ttft, wall, without_tools, written

BASELINES = ("stateless", "stateless-tls")


def all_tables(summary: Summary, header: Header) -> Iterator[Table]:
    """The centre, each axis that was measured, the switches, the tools."""
    yield centre_table(summary)
    for axis in AXES:
        if all(summary.designs(point) for point in axis.points):
            yield axis_table(summary, axis)
    if any(Case(CENTRE, "append", switch) in summary for switch in SWITCHES):
        yield switch_table(summary)
    yield tool_table(header)


def centre_table(summary: Summary) -> Table:
    """Every design at the centre, with and without the tools' time, beside both baselines."""
    table = Table(
        *("design", "with tools s", "without tools s", "saved over stateless, kept", "… fresh TLS"),
        *("first event ms, turn 2 / last", "sent kB", "received kB", "server CPU ms"),
        title=f"A run of {written(CENTRE)}",
    )
    for design in summary.designs(CENTRE):
        case = Case(CENTRE, design)
        table.add_row(
            DESIGNS[design].label,
            seconds(summary.middle(case, wall)),
            seconds(summary.middle(case, without_tools)),
            *(saved(summary, case, CENTRE, baseline) for baseline in BASELINES),
            f"{summary.middle(case, second_ttft).median:,.0f} / {summary.middle(case, last_ttft).median:,.0f}",
            f"{summary.middle(case, lambda one: one.bytes_up / 1000).median:,.0f}",
            f"{summary.middle(case, lambda one: one.bytes_down / 1000).median:,.0f}",
            f"{summary.middle(case, lambda one: one.cpu_ms).median:,.0f}",
        )
    return table


def axis_table(summary: Summary, axis: Axis) -> Table:
    """Seconds without tools at each point of an axis, and what is saved over the baseline with a kept connection."""
    table = Table("design", *(axis.written(point) for point in axis.points), title=f"By {axis.name}, without tools")
    designs = dict.fromkeys(design for point in axis.points for design in summary.designs(point))
    for design in designs:
        table.add_row(DESIGNS[design].label, *(_cell(summary, Case(point, design)) for point in axis.points))
    return table


def _cell(summary: Summary, case: Case) -> str:
    if case not in summary:
        return ""
    text = seconds(summary.middle(case, without_tools))
    return text if case.design == "stateless" else f"{text}  {saved(summary, case, case.point, 'stateless')}"


def switch_table(summary: Summary) -> Table:
    """What a run by append takes with one optimisation less; and two that are designs of their own."""
    table = Table("one less", "of", "without tools s", "slower by", "server CPU ms", title=f"At {written(CENTRE)}")
    rows = [(switch, Case(CENTRE, "append", switch), Case(CENTRE, "append")) for switch in SWITCHES]
    rows.append(("early append off", Case(CENTRE, "append"), Case(CENTRE, "early")))
    rows.append(("persistent connection off", Case(CENTRE, "previous-tls"), Case(CENTRE, "chain")))
    for name, less, whole in rows:
        if less not in summary or whole not in summary:
            continue
        slower = summary.gain(less, whole)
        cpu = summary.middle(less, lambda one: one.cpu_ms).median
        before = summary.middle(whole, lambda one: one.cpu_ms).median
        shown = "none" if slower is None or slower.is_none else f"{-slower.share.median * 100:+.0f} %"
        table.add_row(
            name,
            DESIGNS[whole.design].label,
            seconds(summary.middle(less, without_tools)),
            shown,
            f"{before:,.0f} → {cpu:,.0f}",
        )
    return table


def tool_table(header: Header) -> Table:
    """What was fixed before the first measurement."""
    runs = header.work.runs
    by_program: dict[str, list[float]] = {}
    for command, run in runs.items():
        by_program.setdefault(command.partition(" ")[0], []).append(run.seconds)
    table = Table(
        "tool", "commands", "seconds in all", "slowest s", title="Tools, run once before the first measurement"
    )
    for program, times in by_program.items():
        table.add_row(program, f"{len(times)}", f"{sum(times):.2f}", f"{max(times):.2f}")
    return table


def seconds(milliseconds: Middle) -> str:
    """A time with its spread."""
    return f"{milliseconds.median / 1000:.2f} ± {milliseconds.spread / 1000:.2f}"


def saved(summary: Summary, case: Case, point: Point, baseline: str) -> str:
    """What share of the baseline's time is saved; `none` where that is less than the spread."""
    if case.design == baseline:
        return "–"
    gain = summary.gain(case, Case(point, baseline))
    return "" if gain is None else str(gain)
