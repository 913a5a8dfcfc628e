"""What the figures say, in sentences; those that speak against the prototype among them."""

from collections.abc import Callable, Sequence
from typing import Final

from engine.compare.designs import DESIGNS
from engine.compare.growth import Growth
from engine.compare.plan import CENTRE, Case, Point
from engine.compare.results import Measurement
from engine.compare.summary import Gain, Summary, wall, without_tools, written

_SMALL: Final = 0.10  # a saving below this is called little


def saving(summary: Summary, design: str, baseline: str, point: Point = CENTRE, *, tools: bool = False) -> Gain | None:
    """What a design saves over another at a point, with or without the tools' own time."""
    return summary.gain(Case(point, design), Case(point, baseline), wall if tools else without_tools)


def spoken(gain: Gain | None) -> str:
    """`14 % less`, `3 % more`, `no less`."""
    if gain is None or gain.is_none:
        return "no less"
    return f"{abs(gain.share.median) * 100:.0f} % {'less' if gain.share.median > 0 else 'more'}"


def wall_claim(summary: Summary) -> str:
    """The title of the plot by speed."""
    kept, fresh = (spoken(saving(summary, "append", baseline)) for baseline in ("stateless", "stateless-tls"))
    return (
        f"At {written(CENTRE)}, a run by append takes {fresh} time than stateless HTTP with fresh connections,\n"
        f"{kept} than with a kept one, and {spoken(saving(summary, 'append', 'chain'))} than the shipped chain"
    )


def ttft_claim(summary: Summary, point: Point) -> str:
    """The title of the plot by turn: how much the last turns wait longer than the first ones."""

    def more(design: str) -> float:
        runs = summary.runs(Case(point, design))
        turns = [sorted(one.ttft_ms[turn] for one in runs)[len(runs) // 2] for turn in range(1, len(runs[0].ttft_ms))]
        quarter = max(len(turns) // 4, 1)
        return (sum(turns[-quarter:]) - sum(turns[:quarter])) / quarter

    return (
        f"Over {point.num_calls} calls the wait for a turn's first event grows by {more('stateless'):.0f} ms "
        f"where the history is sent again,\nand by {more('append'):.0f} ms where it is kept"
    )


def parts_claim(summary: Summary) -> str:
    """The title of the stacked plot: what the server takes beside network, tools and sampling."""

    own = _at_centre(summary, lambda one: sum(one.phases_ms.values()) - _sampling(one))

    known = [design for design in ("stateless", "chain", "append") if design in summary.designs(CENTRE)]
    shares = ", ".join(f"{own(design):.0f} ms in {DESIGNS[design].label}" for design in known)
    return f"At {written(CENTRE)}, what the server does around the model takes\n{shares}"


def _at_centre(summary: Summary, value: Callable[[Measurement], float]) -> Callable[[str], float]:
    """The median of a value at the centre, by the design's name."""
    return lambda design: summary.middle(Case(CENTRE, design), value).median


def _sampling(one: Measurement) -> float:
    return one.phases_ms["sampling"] + one.phases_ms["prefill"]


def bytes_claim(summary: Summary) -> str:
    """The title of the plot of bytes."""
    sent = _at_centre(summary, lambda one: one.bytes_up)
    return (
        f"In a run of {CENTRE.num_calls} calls append sends {sent('stateless') / sent('append'):.0f} times fewer bytes "
        f"than stateless HTTP,\nand {sent('chain') / sent('append'):.0f} times fewer than the chain, which repeats "
        "instructions and tools each turn"
    )


def cpu_claim(summary: Summary) -> str:
    """The title of the plot of server CPU."""
    cpu = _at_centre(summary, lambda one: one.cpu_ms)
    return (
        f"A run of {CENTRE.num_calls} calls costs the server {cpu('append'):.0f} ms of CPU by append, "
        f"{cpu('chain'):.0f} ms by the chain, {cpu('stateless'):.0f} ms stateless"
    )


def growth_claim(growths: Sequence[Growth]) -> str:
    """The title of the plot of server CPU by turn."""
    said = [
        f"{DESIGNS[one.design].label} {one.first_ms:.1f} → {one.last_ms:.1f} ms over {len(one.cpu_ms):,}"
        for one in growths
    ]
    return f"Server CPU of a turn, first to last quarter of the turns: {said[0]},\n{', '.join(said[1:])}"


def where_it_does_not_help(summary: Summary) -> list[str]:
    """Points at which append saves little or nothing, and what its tools leave of the saving."""
    said = []
    for point in summary.points():
        gain = saving(summary, "append", "stateless", point)
        if gain is not None and (gain.is_none or gain.share.median < _SMALL):
            said.append(f"{written(point)}: {spoken(gain)} than stateless HTTP over a kept connection.")
    chain = [saving(summary, "append", "chain", point) for point in summary.points()]
    if known := [gain for gain in chain if gain is not None]:
        said.append(f"Beside the shipped chain, append saves {_beside_chain(known)}.")
    with_tools = saving(summary, "append", "stateless-tls", tools=True)
    without = saving(summary, "append", "stateless-tls")
    if with_tools is not None and without is not None:
        said.append(
            f"Tools take their time in every design: with it, append takes {spoken(with_tools)} than "
            f"{DESIGNS['stateless-tls'].label} at {written(CENTRE)}, without it {spoken(without)}."
        )
    return said


def _beside_chain(gains: list[Gain]) -> str:
    real = [gain.share.median for gain in gains if not gain.is_none]
    most = f"at most {max(real, default=0) * 100:.0f} %"
    if len(real) == len(gains):
        return most
    none = f"nothing beyond the spread at {len(gains) - len(real)} of {len(gains)} points"
    return f"{none}, and {most} at the others" if real else none
