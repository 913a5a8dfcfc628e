"""The comparison as plots: colours that the colour-blind tell apart, hatches and markers for print, claims as titles.

Needs matplotlib (the extra `plots`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from engine.compare.claims import bytes_claim, cpu_claim, growth_claim, parts_claim, ttft_claim, wall_claim
from engine.compare.designs import DESIGNS
from engine.compare.growth import Growth
from engine.compare.plan import AXES, CENTRE, SWITCHES, Axis, Case, Point
from engine.compare.results import Measurement
from engine.compare.summary import PUBLISHED_GAIN, Summary, network, rest, without_tools, written

matplotlib.use("agg")  # into files, whatever the user's own settings are

# Okabe and Ito's palette; families share a colour and differ in the hatch.
_COLOURS: Final = {
    "stateless HTTP": "#D55E00",
    "HTTP with previous id": "#E69F00",
    "chain": "#0072B2",
    "append": "#009E73",
    "append early": "#56B4E9",
    "inject": "#CC79A7",
}
_HATCHES: Final = {"kept": "", "fresh TCP": "..", "fresh TLS": "//", "socket": ""}
_MARKERS: Final = {
    "stateless HTTP": "o",
    "HTTP with previous id": "s",
    "chain": "^",
    "append": "D",
    "append early": "v",
}
# Where the time goes, in the order in which it does; several of the server's phases may be one part.
_PARTS: Final = {
    "network": ("#000000", ""),
    "validate": ("#E69F00", "//"),
    "classify": ("#CC79A7", ".."),
    "render": ("#56B4E9", "xx"),
    "tokenise": ("#D55E00", "\\\\"),
    "prefill": ("#F0E442", ""),
    "sample": ("#BBBBBB", ""),
    "post": ("#009E73", "++"),
    "tool": ("#EEEEEE", "oo"),
    "rest": ("#0072B2", "--"),
}
_DPI: Final = 150


def draw(summary: Summary, growths: Sequence[Growth], folder: Path) -> list[tuple[Path, str]]:
    """Write the plots that the measurements allow as PNG; each with the sentence that it shows."""
    drawn = []
    for name, figure, claim in _figures(summary, growths):
        file = folder / f"{name}.png"
        figure.savefig(file, dpi=_DPI, bbox_inches="tight")
        drawn.append((file, claim.replace("\n", " ")))
    return drawn


def _figures(summary: Summary, growths: Sequence[Growth]) -> Iterator[tuple[str, Figure, str]]:
    speeds = AXES[0]
    points = [point for point in speeds.points if summary.designs(point)] or [CENTRE]
    yield "wall", _wall(summary, speeds, points), wall_claim(summary)
    longest = max(summary.points(), key=lambda point: (point.num_calls, point == CENTRE))
    yield "first-event", _first_event(summary, longest), ttft_claim(summary, longest)
    yield "parts", _parts(summary), parts_claim(summary)
    yield "bytes", _bytes(summary), bytes_claim(summary)
    yield "cpu", _cpu(summary), cpu_claim(summary)
    if growths:
        yield "growth", _growth(growths), growth_claim(growths)


def _style(design: str) -> dict[str, Any]:
    found = DESIGNS[design]
    return {
        "color": _COLOURS[found.family],
        "hatch": _HATCHES[found.connection],
        "edgecolor": "white",
        "linewidth": 0.5,
    }


def _new(width: float, height: float, claim: str, **subplots: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(claim, fontsize=10, fontweight="bold")
    axes = figure.subplots(**subplots)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def _wall(summary: Summary, axis: Axis, points: list[Point]) -> Figure:
    figure, axes = _new(3.4 * len(points) + 1, 3.6, wall_claim(summary), ncols=len(points), squeeze=False)
    everywhere = set.intersection(*(set(summary.designs(point)) for point in points))
    designs = [design for design in DESIGNS if design in everywhere][::-1]
    for number, (panel, point) in enumerate(zip(axes[0], points, strict=True)):
        for row, design in enumerate(designs):
            middle = summary.middle(Case(point, design), without_tools)
            panel.barh(row, middle.median / 1000, xerr=middle.spread / 2000, capsize=2, **_style(design))
        panel.set_yticks(range(len(designs)), [DESIGNS[design].label for design in designs] if not number else [])
        panel.set_xlabel("s, without tools", fontsize=8)
        panel.set_title(axis.written(point), fontsize=9, pad=14)
        if "stateless" in designs:
            published = summary.middle(Case(point, "stateless"), without_tools).median * (1 - PUBLISHED_GAIN) / 1000
            panel.axvline(published, color="black", linestyle=":", linewidth=1)
            panel.text(published, len(designs) - 0.4, "published: −40 %", fontsize=7, ha="center", va="bottom")
    return figure


def _first_event(summary: Summary, point: Point) -> Figure:
    figure, panel = _new(8, 4, ttft_claim(summary, point))
    for design in summary.designs(point):
        family = DESIGNS[design].family
        if family not in _MARKERS or DESIGNS[design].connection == "fresh TCP":
            continue
        runs = summary.runs(Case(point, design))
        waits = [median(one.ttft_ms[turn] for one in runs) for turn in range(len(runs[0].ttft_ms))]
        is_fresh = DESIGNS[design].connection == "fresh TLS"
        look = {"color": _COLOURS[family], "marker": _MARKERS[family], "linestyle": "--" if is_fresh else "-"}
        panel.plot(range(1, len(waits) + 1), waits, markersize=3, markevery=4, label=DESIGNS[design].label, **look)
    panel.set_xlabel(f"turn, of a run of {written(point)}", fontsize=8)
    panel.set_ylabel("ms to the first event", fontsize=8)
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def parts_of(one: Measurement) -> dict[str, float]:
    """Where a run's time went, ms, by the names of _PARTS; they add up to its wall time."""
    phases = one.phases_ms
    return {
        "network": network(one),
        "validate": phases["queue"] + phases["route"] + phases["validate"],
        "classify": phases["classify"],
        "render": phases["render"],
        "tokenise": phases["tokenize"],
        "prefill": phases["prefill"],
        "sample": phases["sampling"],
        "post": phases["ledger"],
        "tool": one.tool_ms,
        "rest": rest(one),
    }


def _parts(summary: Summary) -> Figure:
    figure, panel = _new(9, 4, parts_claim(summary))
    designs = summary.designs(CENTRE)[::-1]
    for row, design in enumerate(designs):
        runs = [parts_of(one) for one in summary.runs(Case(CENTRE, design))]
        left = 0.0
        for part, (colour, hatch) in _PARTS.items():
            width = median(one[part] for one in runs)
            label = part if not row else None
            panel.barh(row, width, left=left, color=colour, hatch=hatch, edgecolor="grey", linewidth=0.3, label=label)
            left += width
    panel.set_yticks(range(len(designs)), [DESIGNS[design].label for design in designs])
    panel.set_xlabel("ms of a run", fontsize=8)
    panel.legend(fontsize=7, frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _bytes(summary: Summary) -> Figure:
    figure, axes = _new(9, 3.6, bytes_claim(summary), ncols=2)
    designs = summary.designs(CENTRE)[::-1]
    for panel, name, field in zip(axes, ("sent", "received"), ("bytes_up", "bytes_down"), strict=True):
        for row, design in enumerate(designs):
            size = median(getattr(one, field) for one in summary.runs(Case(CENTRE, design)))
            panel.barh(row, size / 1000, **_style(design))
        panel.set_yticks(range(len(designs)), [DESIGNS[key].label for key in designs] if name == "sent" else [])
        panel.set_xlabel(f"kB {name} by the client in a run", fontsize=8)
    return figure


def _cpu(summary: Summary) -> Figure:
    claim = (
        "Server CPU of a run: sending the history again costs it, and so does each optimisation that is switched off"
    )
    figure, panel = _new(9, 4, claim)
    cases = [Case(CENTRE, design) for design in summary.designs(CENTRE)]
    cases += [Case(CENTRE, "append", switch) for switch in SWITCHES if Case(CENTRE, "append", switch) in summary]
    for row, case in enumerate(reversed(cases)):
        middle = summary.middle(case, lambda one: one.cpu_ms)
        style = _style(case.design) | ({"alpha": 0.6} if case.switch else {})
        panel.barh(row, middle.median, xerr=middle.spread / 2, capsize=2, **style)
    labels = [f"append, {case.switch}" if case.switch else DESIGNS[case.design].label for case in reversed(cases)]
    panel.set_yticks(range(len(cases)), labels)
    panel.set_xlabel(f"ms of server CPU in a run of {written(CENTRE)}", fontsize=8)
    return figure


def _growth(growths: Sequence[Growth]) -> Figure:
    figure, panel = _new(8, 4, growth_claim(growths))
    for one in growths:
        family = DESIGNS[one.design].family
        width = max(len(one.cpu_ms) // 50, 1)
        starts = range(0, len(one.cpu_ms) - width + 1, width)
        shown = [median(one.cpu_ms[start : start + width]) for start in starts]
        look = {"color": _COLOURS[family], "marker": _MARKERS[family]}
        panel.plot(
            [start + width / 2 for start in starts], shown, markersize=3, label=DESIGNS[one.design].label, **look
        )
    panel.set_xlabel("turn", fontsize=8)
    panel.set_ylabel("ms of server CPU (medians of neighbouring turns)", fontsize=8)
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=8, frameon=False)
    return figure
