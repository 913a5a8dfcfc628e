"""`longloop compare`: measures the designs side by side, and shows what each took."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from engine.bench.machine import describe_machine
from engine.commands.bench import print_figures
from engine.commands.serve import UsageError
from engine.compare.commands import CannotRun
from engine.compare.designs import DESIGNS
from engine.compare.folder import compare_folder
from engine.compare.plan import Job, Plan, estimate_s, full_plan, quick_plan
from engine.compare.results import Header, OtherWork, Results, RunsDiffer, begin, check_equal, resume
from engine.compare.run import make_work, measure
from engine.compare.summary import PUBLISHED, Summary, written
from engine.compare.tables import all_tables
from engine.compare.work import TOKENS_PER_STEP, read_script


def compare_command(*, quick: bool, rounds: int | None, out: Path, fresh: bool, as_json: bool) -> None:
    """Measure what is not measured yet, then show everything."""
    console = Console()
    plan = quick_plan(rounds or 3) if quick else full_plan(rounds or 5)
    try:
        results = _results(console, plan, out / ("quick" if quick else "full"), fresh=fresh or quick)
        _measure(console, plan, results)
        check_equal(results.measured)
    except (CannotRun, OtherWork, FileNotFoundError) as error:
        raise UsageError(str(error)) from error
    except RunsDiffer as error:
        console.print(f"[red]The designs did not come out the same, so there is nothing to compare:[/] {error}")
        raise SystemExit(1) from None
    show(console, results)
    if as_json:
        print(json.dumps(as_object(results)))


def _results(console: Console, plan: Plan, out: Path, *, fresh: bool) -> Results:
    machine = describe_machine()
    if not fresh and (found := resume(out, machine)) is not None:
        console.print(f"{len(found.done)} runs in {out} are done already.")
        return found
    folder = compare_folder()
    script = read_script(folder)
    with console.status("running the agent's commands once"):
        work = trio.run(make_work, script, folder / "repository", plan, lambda command: None)
    return begin(out, Header(work, machine))


def _measure(console: Console, plan: Plan, results: Results) -> None:
    tool_seconds = _tool_seconds(results)
    todo = [job for job in plan.jobs() if job not in results.done]
    total = sum(estimate_s(job.case, TOKENS_PER_STEP, tool_seconds) for job in todo)
    console.print(
        f"{len(todo)} runs to measure, about {total / 60:.0f} minutes; a scripted model, nothing is inferred."
    )
    with _progress(console, total) as (progress, task), tempfile.TemporaryDirectory() as folder:

        def report(job: Job) -> None:
            label = f"{written(job.case.point)}: {DESIGNS[job.case.design].label} {job.case.switch}"
            progress.update(task, description=label, advance=estimate_s(job.case, TOKENS_PER_STEP, tool_seconds))

        trio.run(measure, plan, results, Path(folder), report)


def _tool_seconds(results: Results) -> float:
    """What a call takes, on average over the commands that were run."""
    runs = results.header.work.runs
    return sum(run.seconds for run in runs.values()) / len(runs)


@contextmanager
def _progress(console: Console, total: float) -> Iterator[tuple[Progress, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield progress, progress.add_task("starting the servers", total=total)


def show(console: Console, results: Results) -> None:
    """The tables, what is held to what, and what others have published."""
    summary = Summary(results.measured)
    num_runs = len(results.measured)
    console.print(f"All {num_runs} runs of a script made the same items, whatever the design.")
    for table in all_tables(summary, results.header):
        console.print(table)
    for value, what in PUBLISHED:
        console.print(f"[dim]published: {value} ({what})[/]")
    print_figures(console, {"budgets": summary.never_slower(), "machine": results.header.machine})


def as_object(results: Results) -> dict[str, Any]:
    """Everything that was measured, for programs."""
    header = results.header
    return {
        "compare": "designs",
        "machine": header.machine,
        "tokens_per_step": header.tokens_per_step,
        "tool_seconds": {command: run.seconds for command, run in header.work.runs.items()},
        "budgets": [figure.as_json() for figure in Summary(results.measured).never_slower()],
        "runs": [msgspec.to_builtins(one) for one in results.measured],
    }
