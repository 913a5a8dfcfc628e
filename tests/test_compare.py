"""The comparison of the designs: they play the same run, what was measured is kept, and what may be said of it."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
import trio
from rich.console import Console

from engine.commands.compare import _measure_more, compare_command
from engine.commands.serve import UsageError
from engine.compare.designs import DESIGNS
from engine.compare.folder import compare_folder
from engine.compare.growth import Growth
from engine.compare.plan import AXES, CENTRE, SWITCHES, Case, Job, Plan, Point, estimate_s, full_plan, quick_plan
from engine.compare.played import PHASES, Course, RunFailed, check
from engine.compare.report import More, keep_more
from engine.compare.results import (
    Header,
    Measurement,
    OtherWork,
    Results,
    RunsDiffer,
    begin,
    check_equal,
    first_difference,
    resume,
)
from engine.compare.run import make_work, measure
from engine.compare.summary import Gain, Middle, Summary, rest, without_tools
from engine.compare.target import Target
from engine.compare.work import Script, Step, ToolRun, Work, read_script
from tests.tiny import save_format

TINY = Point(0, rtt_ms=2, num_calls=5)
MACHINE = {"processor": "p", "cores": 2, "python": "3"}
EMPTY = Work(Script("t", "a", (Step("s", ("cat a",)),)), {})


def run(design: str, repetition: int = 0, *, point: Point = CENTRE, switch: str = "", **fields) -> Measurement:
    given = {
        "wall_ms": 3_000.0,
        "tool_ms": 1_000.0,
        "ttft_ms": [60.0, 50.0, 55.0],
        "phases_ms": dict.fromkeys(PHASES, 1.0),
        "counts": {},
        "num_trips": 20,
        "bytes_up": 1_000,
        "bytes_down": 2_000,
        "cpu_ms": 300.0,
        "num_items": 41,
        "items_digest": "d",
    }
    return Measurement(Job(Case(point, design, switch), repetition), **(given | fields))


def compare(out: Path, *, quick: bool = True) -> None:
    compare_command(quick=quick, rounds=1, out=out, fresh=False, config=None, model=False, as_json=True)


# --- the plan ----------------------------------------------------------------------------------------------------


def test_every_repetition_measures_every_case_and_begins_elsewhere() -> None:
    plan = quick_plan(2)
    jobs = list(plan.jobs())
    assert len(jobs) == len(set(jobs)) == 2 * len(plan.groups[0])
    first, second = ([job.case.design for job in jobs if job.repetition == number] for number in (0, 1))
    assert sorted(first) == sorted(second)
    assert second == [*first[1:], first[0]]


def test_the_full_plan_has_all_axes_and_designs_and_fits_into_its_time() -> None:
    plan = full_plan(5)
    assert {point for axis in AXES for point in axis.points} == set(plan.points())
    cases = {case for group in plan.groups for case in group}
    assert {case.design for case in cases} == set(DESIGNS)
    assert {case.switch for case in cases} == {"", *SWITCHES}
    assert sum(estimate_s(job.case, 60, 0.06) for job in plan.jobs()) < 45 * 60
    assert sum(estimate_s(job.case, 60, 0.06) for job in quick_plan(3).jobs()) < 100


def test_points_are_written_by_what_differs() -> None:
    speed, _, calls, up = AXES
    assert [speed.written(point) for point in speed.points[:2]] == ["65 tokens/s, 5 calls", "250 tokens/s"]
    assert calls.written(calls.points[0]) == "5 calls"
    assert [up.written(point) for point in up.points] == ["no limit", "20 Mbit/s"]


# --- what is kept ------------------------------------------------------------------------------------------------


def test_a_stopped_comparison_goes_on_where_it_was(tmp_path) -> None:
    results = begin(tmp_path, Header(EMPTY, MACHINE))
    results.add(run("chain"))
    file = tmp_path / "measurements.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[-100:-1])  # killed while it wrote
    again = resume(tmp_path, MACHINE)
    assert again is not None
    assert (again.measured, again.header) == ([run("chain")], Header(EMPTY, MACHINE))
    assert file.read_bytes() == whole
    again.add(run("append"))
    assert resume(tmp_path, MACHINE).done == {run("chain").job, run("append").job}


def test_nothing_is_resumed_from_an_empty_folder(tmp_path) -> None:
    assert resume(tmp_path, MACHINE) is None


@pytest.mark.parametrize("machine", [MACHINE | {"cores": 64}, MACHINE | {"python": "4"}])
def test_measurements_of_two_machines_are_not_mixed(tmp_path, machine) -> None:
    begin(tmp_path, Header(EMPTY, MACHINE))
    with pytest.raises(OtherWork, match="another machine"):
        resume(tmp_path, machine)


def test_a_file_of_another_kind_is_refused(tmp_path) -> None:
    (tmp_path / "measurements.jsonl").write_text('{"line": "else"}\n')
    with pytest.raises(OtherWork, match="another version"):
        resume(tmp_path, MACHINE)


# --- the same items ----------------------------------------------------------------------------------------------


def test_runs_of_one_script_that_differ_are_found() -> None:
    check_equal([run("chain"), run("append"), run("chain", point=TINY, items_digest="e")])
    with pytest.raises(RunsDiffer, match="append made 40 items that are not those of chain, which made 41"):
        check_equal([run("chain"), run("append", items_digest="e", num_items=40)])


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ([{"id": "1", "a": 1}], [{"id": "2", "a": 1}], None),
        ([{"a": 1}], [{"a": 2}], "item 0"),
        ([{"a": 1}], [], "one has 1 items and the other 0"),
    ],
)
def test_the_first_difference_is_named(one, two, said) -> None:
    assert (first_difference(one, two) or "").startswith(said or "")


def test_nothing_is_shown_of_runs_that_differ(tmp_path, monkeypatch, capsys) -> None:
    results = Results(tmp_path, Header(EMPTY, MACHINE), [run("chain"), run("append", items_digest="e")])
    monkeypatch.setattr("engine.commands.compare._results", lambda *args, **named: results)
    monkeypatch.setattr("engine.commands.compare._measure", lambda *args: None)
    with pytest.raises(SystemExit):
        compare(tmp_path)
    shown = capsys.readouterr().out
    assert "nothing to compare" in shown
    assert "wall_ms" not in shown
    assert "without tools" not in shown


# --- what may be said --------------------------------------------------------------------------------------------


def test_a_difference_within_the_spread_is_none() -> None:
    assert str(Gain(Middle(0.4, 0.1, 5))) == "+40 %"
    assert str(Gain(Middle(-0.4, 0.1, 5))) == "-40 %"
    assert str(Gain(Middle(0.05, 0.1, 5))) == "none"
    assert str(Gain(Middle(0.4, 0.0, 1))) == "none", "one run has no spread"


def test_the_spread_is_that_of_the_middle_half() -> None:
    assert Middle.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Middle(3.0, 2.0, 5)
    assert Middle.of([7.0]) == Middle(7.0, 0.0, 1)


def test_gains_are_of_runs_side_by_side() -> None:
    # The machine is twice as slow in the second repetition; the gain is the same.
    runs = [run("chain", n, wall_ms=1_000.0 + 1_000 * (n + 1)) for n in range(2)]
    runs += [run("append", n, wall_ms=1_000.0 + 500 * (n + 1)) for n in range(2)]
    summary = Summary(runs)
    gain = summary.gain(Case(CENTRE, "append"), Case(CENTRE, "chain"))
    assert gain == Gain(Middle(0.5, 0.0, 2))
    assert summary.gain(Case(CENTRE, "append"), Case(TINY, "chain")) is None
    assert [figure.is_met for figure in summary.never_slower()] == [True]


def test_append_that_is_slower_than_the_spread_allows_misses_its_budget() -> None:
    runs = [run("chain", n) for n in range(5)] + [run("append", n, wall_ms=3_100.0 + n) for n in range(5)]
    assert [figure.verdict for figure in Summary(runs).never_slower()] == ["missed"]


def test_the_parts_of_a_run_add_up() -> None:
    one = run("chain")
    assert without_tools(one) == 2_000
    assert rest(one) == 2_000 - 20 * 50 - len(PHASES)


@pytest.mark.parametrize("kind", ["error", "response.failed", "response.incomplete", "response.inject.failed"])
def test_a_run_that_fails_is_no_measurement(kind) -> None:
    with pytest.raises(RunFailed, match=kind):
        check({"type": kind})


# --- all of it ---------------------------------------------------------------------------------------------------


async def test_all_designs_make_the_same_run_and_say_what_each_had_to_redo(tmp_path) -> None:
    folder = compare_folder()
    tokenizer = str(save_format(tmp_path / "tokenizer"))
    group = [Case(TINY, design) for design in DESIGNS] + [Case(TINY, "append", "token cache off")]
    plan = Plan((tuple(group),), 1)
    work = await make_work(read_script(folder), folder / "repository", plan, lambda command: None)
    quick_tools = {command: ToolRun(run.output, min(run.seconds, 0.1)) for command, run in work.runs.items()}
    results = begin(tmp_path / "out", Header(Work(work.script, quick_tools), MACHINE))
    seen: list[Job] = []
    with trio.fail_after(120):
        await measure(plan, results, tmp_path, seen.append, tokenizer=tokenizer)
    assert seen == list(plan.jobs())
    check_equal(results.measured)
    by_case = {one.case: one for one in results.measured}
    by_design = {design: by_case[Case(TINY, design)] for design in DESIGNS}
    for one in by_case.values():
        assert len(one.ttft_ms) == 5, "four steps with calls and the answer"
        assert one.wall_ms > one.tool_ms > 50, "pytest took its time"
        assert one.cpu_ms > 0
    assert by_design["append"].counts["items_new"] == by_design["chain"].counts["items_new"] == 6
    assert by_design["stateless"].counts["items_new"] > 2 * by_design["append"].counts["items_new"]
    assert by_design["stateless"].bytes_up > by_design["previous"].bytes_up > 2 * by_design["append"].bytes_up
    assert [by_design[name].num_trips for name in ("stateless", "stateless-tcp", "stateless-tls")] == [6, 10, 15]
    assert by_design["chain"].num_trips == by_design["append"].num_trips == by_design["early"].num_trips == 7
    switched = by_case[Case(TINY, "append", "token cache off")]
    assert switched.counts["items_new"] > by_design["append"].counts["items_new"]
    await measure(plan, results, tmp_path / "none", seen.append)
    assert len(seen) == len(group), "nothing is measured twice"


async def play_something_else(target: Target, course: Course) -> None:
    await DESIGNS["early"].play(target, course)
    course.played.items[3] = {"type": "message", "content": "something else"}


async def fail(target: Target, course: Course) -> None:
    async with trio.open_nursery():
        raise RunFailed("the server is gone")


@pytest.mark.parametrize(
    ("play", "error", "said"),
    [(play_something_else, RunsDiffer, "chain at .* item 3"), (fail, RunFailed, "the server is gone")],
)
async def test_a_run_that_differs_or_fails_ends_the_comparison(tmp_path, monkeypatch, play, error, said) -> None:
    tokenizer = str(save_format(tmp_path / "tokenizer"))
    commands = ["cat README.md", "pytest", *(step.run[0] for step in read_script(compare_folder()).steps[1:5])]
    work = Work(read_script(compare_folder()), dict.fromkeys(commands, ToolRun("", 0)))
    results = begin(tmp_path / "out", Header(work, MACHINE))
    plan = Plan(((Case(TINY, "append"), Case(TINY, "chain")),), 1)
    played = []

    async def play_once_right(target: Target, course: Course) -> None:
        played.append(course)
        await (DESIGNS["early"].play if len(played) == 1 else play)(target, course)  # the first warms up

    wrong = dataclasses.replace(DESIGNS["chain"], play=play_once_right)
    monkeypatch.setattr("engine.compare.run.DESIGNS", DESIGNS | {"chain": wrong})
    with trio.fail_after(60), pytest.raises(error, match=said):
        await measure(plan, results, tmp_path, lambda job: None, tokenizer=tokenizer)
    assert [one.case.design for one in results.measured] == ["append"]


def test_a_run_that_could_not_be_measured_is_said_so(tmp_path, monkeypatch, capsys) -> None:
    def give_up(*args):
        raise RunFailed("the server is gone")

    monkeypatch.setattr("engine.commands.compare._results", lambda *args, **named: None)
    monkeypatch.setattr("engine.commands.compare._measure", give_up)
    with pytest.raises(SystemExit):
        compare(tmp_path)
    assert "could not be measured: the server is gone" in capsys.readouterr().out


def test_the_command_measures_and_shows(tmp_path, monkeypatch, capsys) -> None:
    tokenizer = str(save_format(tmp_path / "tokenizer"))
    monkeypatch.setattr("engine.compare.run.settings_of", lambda **changes: changes | {"tokenizer": tokenizer})
    tiny = Plan((tuple(Case(TINY, design) for design in ("stateless", "chain", "append")),), 1)
    monkeypatch.setattr("engine.commands.compare.full_plan", lambda rounds: tiny)
    for module in ("tables", "claims", "plots", "report"):
        monkeypatch.setattr(f"engine.compare.{module}.CENTRE", TINY)
    monkeypatch.setattr("engine.compare.growth.TURNS", {"append": 2})
    monkeypatch.setattr("engine.compare.growth.settings_of", lambda **changes: {"tokenizer": tokenizer})
    for module in ("commands.compare", "compare.report"):
        monkeypatch.setattr(f"engine.{module}.has_matplotlib", lambda: False)
    for _ in range(2):
        compare(tmp_path / "out", quick=False)
    shown = capsys.readouterr().out
    assert "All 3 runs of a script made the same items" in shown
    assert "3 runs in" in shown
    assert "│ stateless HTTP, kept" in shown  # no name is broken up in a pipe or a file
    assert "published: about 40 % less" in shown
    result = json.loads(shown.splitlines()[-1])
    assert [one["job"]["case"]["design"] for one in result["runs"]] == ["stateless", "chain", "append"]
    assert result["tokens_per_step"] == 60
    assert result["tool_seconds"]["pytest"] > 0
    assert [one["design"] for one in result["growth"]] == ["append"]
    assert json.loads((tmp_path / "out" / "full" / "report.json").read_text()) == result
    assert "report.html" in shown
    assert "Plots need matplotlib" in shown


@pytest.mark.parametrize(
    ("fault", "said"),
    [(RunsDiffer("item 3"), "item 3"), (trio.TooSlowError(), "it took too long"), (None, "needs torch")],
)
def test_what_a_real_model_cannot_show_does_not_hide_the_rest(tmp_path, monkeypatch, fault, said) -> None:
    async def measure_real(*args, **named):
        raise fault

    results = begin(tmp_path, Header(EMPTY, MACHINE))
    keep_more(tmp_path, More([Growth("append", [1.0])]))
    monkeypatch.setattr("engine.compare.real.measure_real", measure_real)
    monkeypatch.setattr("engine.commands.compare.run_commands", lambda *args: {})
    monkeypatch.setattr("engine.commands.compare.find_spec", lambda name: fault)
    console = Console(file=io.StringIO())
    more = _measure_more(console, results, None, model=True)
    assert (more.growths, more.reals) == ([Growth("append", [1.0])], [])
    shown = " ".join(console.file.getvalue().split())
    assert "No table on the default local model:" in shown
    assert said in shown


def test_what_stands_in_the_way_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("engine.compare.commands.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="need pytest"):
        compare(tmp_path)
