"""`longloop compare`: measures the designs side by side, shows what each took, and writes it down."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from engine.backends.pretrained import ModelNotAvailable
from engine.bench.machine import describe_machine
from engine.commands.bench import print_figures
from engine.commands.serve import UsageError
from engine.compare import growth, real
from engine.compare.commands import CannotRun, run_commands
from engine.compare.designs import DESIGNS
from engine.compare.fitted import fitted
from engine.compare.folder import compare_folder
from engine.compare.plan import Job, Plan, estimate_s, full_plan, quick_plan
from engine.compare.played import RunFailed
from engine.compare.report import More, Report, has_matplotlib, keep_more, read_more
from engine.compare.results import Header, OtherWork, Results, RunsDiffer, begin, check_equal, resume
from engine.compare.run import make_work, measure
from engine.compare.summary import PUBLISHED, written
from engine.compare.tables import Grid
from engine.compare.work import TOKENS_PER_STEP, Work, read_script

_REAL_ROUNDS: Final = 3
_FILE_WIDTH: Final = 200  # columns; in eighty the names of the designs cannot be read


def compare_command(
    *, quick: bool, rounds: int | None, out: Path, fresh: bool, config: Path | None, model: bool, as_json: bool
) -> None:
    """Measure what is not measured yet, then show everything."""
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    plan = quick_plan(rounds or 3) if quick else full_plan(rounds or 5)
    folder = out / ("quick" if quick else "full")
    try:
        results = _results(console, plan, folder, fresh=fresh or quick)
        _measure(console, plan, results)
        check_equal(results.measured)
        more = More() if quick else _measure_more(console, results, config, model=model)
    except (CannotRun, OtherWork, FileNotFoundError) as error:
        raise UsageError(str(error)) from error
    except RunsDiffer as error:
        console.print(f"[red]The designs did not come out the same, so there is nothing to compare:[/] {error}")
        raise SystemExit(1) from None
    except (RunFailed, trio.TooSlowError) as error:
        console.print(f"[red]A run could not be measured:[/] {str(error) or 'it took too long'}")
        raise SystemExit(1) from None
    report = Report(results, more)
    show(console, report)
    if as_json:
        print(json.dumps(report.as_object()))


def _results(console: Console, plan: Plan, folder: Path, *, fresh: bool) -> Results:
    machine = describe_machine()
    if not fresh and (found := resume(folder, machine)) is not None:
        console.print(f"{len(found.done)} runs in {folder} are done already.")
        return found
    source = compare_folder()
    with console.status("running the agent's commands once"):
        work = trio.run(make_work, read_script(source), source / "repository", plan, lambda command: None)
    keep = begin(folder, Header(work, machine))
    keep_more(folder, More())
    return keep


def _measure(console: Console, plan: Plan, results: Results) -> None:
    runs = results.header.work.runs
    estimate = partial(
        estimate_s,
        tokens_per_step=TOKENS_PER_STEP,
        tool_seconds=sum(run.seconds for run in runs.values()) / len(runs),
    )
    todo = [job for job in plan.jobs() if job not in results.done]
    total = sum(estimate(job.case) for job in todo)
    console.print(f"{len(todo)} runs to measure, about {total / 60:.0f} minutes; the model is scripted.")
    with _progress(console, total) as (progress, task), tempfile.TemporaryDirectory() as folder:

        def report(job: Job) -> None:
            label = f"{written(job.case.point)}: {DESIGNS[job.case.design].label} {job.case.switch}"
            progress.update(task, description=label, advance=estimate(job.case))

        trio.run(measure, plan, results, Path(folder), report)


def _measure_more(console: Console, results: Results, config: Path | None, *, model: bool) -> More:
    """What is measured once beside the plan's runs; what is there already stays."""
    more = read_more(results.folder)
    if not more.growths:
        with _progress(console, len(growth.TURNS)) as (progress, task):
            progress.update(task, description="server CPU of a turn, up to 1,000 turns")
            advance = lambda design: progress.advance(task)  # noqa: E731 - it is nothing else
            more.growths = trio.run(growth.measure_growth, growth.TURNS, advance)
        keep_more(results.folder, more)
    for file in [None, *([config] if config else [])] if model else []:
        if any(one.config == str(file or "") for one in more.reals):
            continue
        try:
            more.reals.append(_measure_real(console, file))
        except (ModelNotAvailable, RunsDiffer, RunFailed, trio.TooSlowError) as error:
            # The scripted runs are compared among themselves; what they show stands without this table.
            console.print(
                f"[red]No table on {file or 'the default local model'}:[/] {str(error) or 'it took too long'}"
            )
            continue
        keep_more(results.folder, more)
    return more


def _measure_real(console: Console, config: Path | None) -> real.RealModel:
    if config is None and find_spec("torch") is None:
        raise ModelNotAvailable("it needs torch: pip install 'longloop[local]'")
    source = compare_folder()
    work = Work(read_script(source), run_commands(source / "repository", real.COMMANDS, lambda command: None))
    with _progress(console, len(real.ROWS) * (_REAL_ROUNDS + 1)) as (progress, task):
        progress.update(task, description=f"a real model: {config or 'the default local model'}")
        advance = lambda row: progress.advance(task)  # noqa: E731 - it is nothing else
        return trio.run(partial(real.measure_real, work, _REAL_ROUNDS, advance, config=config))


@contextmanager
def _progress(console: Console, total: float) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield progress, progress.add_task("starting the servers", total=total)


def show(console: Console, report: Report) -> None:
    """The tables, where there is nothing to gain, what others have published, what is held to what; and the files."""
    console.print(f"All {len(report.results.measured)} runs of a script made the same items, whatever the design.")
    for grid in report.grids():
        for part in fitted(grid, console.width):
            console.print(table_of(part))
    for line in report.against():
        console.print(f"Does not help: {line}")
    for value, what in PUBLISHED:
        console.print(f"[dim]published: {value} ({what})[/]")
    print_figures(console, {"budgets": report.figures(), "machine": report.results.header.machine})
    for file in report.write():
        console.print(str(file), soft_wrap=True)
    if not has_matplotlib():
        console.print("Plots need matplotlib: pip install 'longloop[plots]'.")


def table_of(grid: Grid) -> Table:
    """As it is shown; its cells have their line breaks already."""
    table = Table(*(Column(name, no_wrap=True) for name in grid.head), title=grid.title)
    for row in grid.rows:
        table.add_row(*row)
    return table
