"""Everything that a comparison has found, and the files that show it: report.json, report.html, plots as PNG."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.bench.budgets import Figure
from engine.compare.claims import wall_claim, where_it_does_not_help
from engine.compare.growth import Growth
from engine.compare.growth import budgets as growth_budgets
from engine.compare.page import page
from engine.compare.plan import CENTRE
from engine.compare.real import RealModel
from engine.compare.results import Results
from engine.compare.summary import PUBLISHED, Summary
from engine.compare.tables import Grid, command_grid, grids_of

_MORE: Final = "more.json"


class More(msgspec.Struct):
    """What is measured beside the plan's runs, each once."""

    growths: list[Growth] = []
    reals: list[RealModel] = []


class Report:
    """What was measured, and what is shown of it."""

    def __init__(self, results: Results, more: More) -> None:
        self.results = results
        self.more = more
        self.summary = Summary(results.measured)

    def grids(self) -> list[Grid]:
        """All tables."""
        return list(grids_of(self.summary, self.results.header, self.more.growths, self.more.reals))

    def figures(self) -> list[Figure]:
        """What is held to a budget."""
        return self.summary.never_slower() + growth_budgets(self.more.growths)

    def against(self) -> list[str]:
        """Where the prototype does not help."""
        return where_it_does_not_help(self.summary)

    def as_object(self) -> dict[str, Any]:
        """Everything that was measured, for programs."""
        header = self.results.header
        return {
            "compare": "designs",
            "machine": header.machine,
            "tokens_per_step": header.tokens_per_step,
            "tool_seconds": {command: run.seconds for command, run in header.work.runs.items()},
            "published": dict(PUBLISHED),
            "budgets": [figure.as_json() for figure in self.figures()],
            "runs": [msgspec.to_builtins(one) for one in self.results.measured],
            "growth": msgspec.to_builtins(self.more.growths),
            "real_models": msgspec.to_builtins(self.more.reals),
        }

    def write(self) -> list[Path]:
        """Write the files into the results' folder; their paths. Plots are left out where matplotlib is not there."""
        folder = self.results.folder
        as_json, as_page = folder / "report.json", folder / "report.html"
        as_json.write_text(json.dumps(self.as_object(), indent=1) + "\n")
        plots = self._draw(folder) if has_matplotlib() and self.summary.designs(CENTRE) else []
        header, title = self.results.header, wall_claim(self.summary).replace("\n", " ")
        grids = [*self.grids(), command_grid(header)]
        as_page.write_text(page(header, title, grids, plots, self.against()), encoding="utf-8")
        return [as_page, as_json, *(file for file, _ in plots)]

    def _draw(self, folder: Path) -> list[tuple[Path, str]]:
        # matplotlib is an extra, and takes a second to import.
        from engine.compare.plots import draw

        return draw(self.summary, self.more.growths, folder)


def has_matplotlib() -> bool:
    """Whether there can be plots."""
    return find_spec("matplotlib") is not None


def read_more(folder: Path) -> More:
    """What a comparison that was stopped has measured already beside its runs."""
    file = folder / _MORE
    return msgspec.json.decode(file.read_bytes(), type=More) if file.is_file() else More()


def keep_more(folder: Path, more: More) -> None:
    """Write it down."""
    (folder / _MORE).write_bytes(msgspec.json.encode(more))
