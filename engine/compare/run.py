"""Doing a plan: the servers it needs, each job that is not done yet, the check that all runs are the same."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from engine.bench.processes import open_scripts
from engine.compare.commands import run_commands
from engine.compare.designs import DESIGNS
from engine.compare.measure import Bench, open_bench, settings_of
from engine.compare.plan import SWITCHES, Job, Plan, Point
from engine.compare.played import Item, RunFailed
from engine.compare.results import Results, RunsDiffer, first_difference, measurement
from engine.compare.work import Script, Work, commands_of, first_steps, scenario

_WARM_UP = Point(0, rtt_ms=0, num_calls=5)


async def make_work(script: Script, repository: Path, plan: Plan, report: Callable[[str], None]) -> Work:
    """The work with its tools really run, as far as the plan needs them. Raises CannotRun."""
    num_calls = max(point.num_calls for point in plan.points())
    commands = commands_of(first_steps(script, num_calls))
    return Work(script, await trio.to_thread.run_sync(run_commands, repository, commands, report))


async def measure(
    plan: Plan, results: Results, folder: Path, report: Callable[[Job], None], *, tokenizer: str = "default"
) -> None:
    """Do every job of the plan that `results` does not have. Calls `report` after each.

    folder: for the servers' files. Raises RunsDiffer at the first run that made other items than those before it,
    RunFailed at the first that did not complete.
    """
    jobs = [job for job in plan.jobs() if job not in results.done]
    if not jobs:
        return
    try:
        async with _open_benches(plan, results.header.work, folder, tokenizer) as benches:
            await _do(jobs, benches, results, report)
    except BaseExceptionGroup as group:  # what is wrong with a run comes through the nurseries around it
        raise _first(group) or group from None


async def _do(jobs: list[Job], benches: dict[str, Bench], results: Results, report: Callable[[Job], None]) -> None:
    first_items: dict[str, list[Item]] = {}
    for job in jobs:
        case = job.case
        played = await benches[case.switch].play(DESIGNS[case.design], case.point)
        expected = first_items.setdefault(case.point.model, played.items)
        if difference := first_difference(expected, played.items):
            raise RunsDiffer(f"{case.design} at {case.point.model}: {difference}")
        results.add(measurement(job, played))
        report(job)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The first exception of ours in it."""
    found: BaseException | None = group.subgroup((RunsDiffer, RunFailed))
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


@asynccontextmanager
async def _open_benches(plan: Plan, work: Work, folder: Path, tokenizer: str) -> AsyncIterator[dict[str, Bench]]:
    """A server for each switch, `` for none, that plays the scenarios of all points. Each design has had a run."""
    points = {point.model: point for point in (*plan.points(), _WARM_UP)}
    scenarios = {name: scenario(work.script, p.num_calls, p.tokens_per_second) for name, p in points.items()}
    benches: dict[str, Bench] = {}
    async with AsyncExitStack() as stack:
        for number, switch in enumerate(plan.switches()):
            own = folder / f"server-{number}"
            own.mkdir()
            settings = settings_of(tokenizer=tokenizer, **SWITCHES.get(switch, {}))
            server = await stack.enter_async_context(open_scripts(scenarios, own, **settings))
            benches[switch] = await stack.enter_async_context(open_bench(server, work))
        for design, switch in dict.fromkeys((case.design, case.switch) for group in plan.groups for case in group):
            await benches[switch].play(DESIGNS[design], _WARM_UP, tools_take_time=False)
        yield benches
