"""What a comparison shows: tables, claims, plots, the page; and what is measured beside the plan's runs."""

import io
import json

import pytest
import trio
from rich.console import Console

from engine.commands.compare import table_of
from engine.compare import real
from engine.compare.claims import _beside_chain, spoken, wall_claim, where_it_does_not_help
from engine.compare.commands import run_commands
from engine.compare.designs import DESIGNS
from engine.compare.fitted import fitted
from engine.compare.folder import compare_folder
from engine.compare.growth import Growth, budgets, measure_growth
from engine.compare.plan import AXES, SWITCHES, Plan, full_plan
from engine.compare.played import PHASES
from engine.compare.plots import parts_of
from engine.compare.report import More, Report, keep_more, read_more
from engine.compare.results import Header, Measurement, Results, RunsDiffer
from engine.compare.summary import Gain, Middle, Summary
from engine.compare.tables import Grid
from engine.compare.work import Script, Step, ToolRun, Work
from tests.tiny import save_format

MACHINE = {"processor": "a <processor>", "cores": 2, "python": "3", "packages": {"trio": "1"}}
WORK = Work(Script("t", "a", (Step("s", ("cat a", "pytest")),)), {"cat a": ToolRun("A", 0.5), "pytest": ToolRun("", 2)})
WALLS = {"stateless": 4_000.0, "stateless-tcp": 5_000.0, "stateless-tls": 6_000.0, "append": 2_980.0}
GROWTHS = [
    Growth("append", [4.0] * 100),
    Growth("chain", [5.0] * 100),
    Growth("stateless", [5.0 + number for number in range(100)]),
]


def measured(plan: Plan) -> list[Measurement]:
    return [
        Measurement(
            job=job,
            wall_ms=WALLS.get(job.case.design, 3_000.0) + job.repetition,
            tool_ms=1_000.0,
            ttft_ms=[60.0] + [50.0 + turn * (job.case.design == "stateless") for turn in range(4)],
            phases_ms=dict.fromkeys(PHASES, 1.0),
            counts={},
            num_trips=20,
            bytes_up=100_000 if job.case.design == "stateless" else 1_000,
            bytes_down=2_000,
            cpu_ms=300.0,
            num_items=41,
            items_digest="d",
        )
        for job in plan.jobs()
    ]


def report(folder, growths=GROWTHS, reals=()) -> Report:
    return Report(Results(folder, Header(WORK, MACHINE), measured(full_plan(2))), More(list(growths), list(reals)))


def test_tables_have_a_row_for_each_design_and_all_axes(tmp_path) -> None:
    turns = real.Turns("append", 1_000, [1, 2, 3], 4, 5, 6, 7)
    grids = report(tmp_path, reals=[real.RealModel("a model", "", 2, [turns, turns])]).grids()
    assert [grid.title.partition(":")[0] for grid in grids] == [
        "A run of 1,000 tokens/s, 50 ms round trip, 20 calls",
        *(f"By {axis.name}" for axis in AXES),
        "One optimisation less, at 1,000 tokens/s, 50 ms round trip, 20 calls",
        "Server CPU of a turn",
        "A run of 2 calls on a model",
        "Tools, really run once before the first measurement",
    ]
    assert [row[0] for row in grids[0].rows] == [design.label for design in DESIGNS.values()]
    assert grids[0].rows[-3][:5] == ("append", "2.98 ± 0.00", "1.98 ± 0.00", "+34 %", "+60 %")
    assert grids[1].rows[-3] == ("append", *["1.98 ± 0.00 (2.98) +34 %"] * 4)
    assert [row[0] for row in grids[5].rows] == [*SWITCHES, "early append off", "persistent connection off"]
    assert grids[-2].rows == [("append", "1.00 ± 0.00", "2 / 2", "4", "5", "0.01 ± 0.00")]
    assert grids[-1].rows == [("cat", "1", "0.50", "0.50"), ("pytest", "1", "2.00", "2.00")]
    assert all(len(row) == len(grid.head) for grid in grids for row in grid.rows)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Gain(Middle(0.4, 0.1, 5)), "40 % less"),
        (Gain(Middle(-0.4, 0.1, 5)), "40 % more"),
        (Gain(Middle(0.05, 0.1, 5)), "no less"),
        (None, "no less"),
    ],
)
def test_a_gain_is_spoken_with_its_sign(gain, words) -> None:
    assert spoken(gain) == words


@pytest.mark.parametrize("width", [60, 79, 80, 100, 200])
def test_tables_are_legible_in_a_narrow_terminal(tmp_path, width) -> None:
    turns = real.Turns("append", 1_000, [1, 2, 3], 4, 5, 6, 7)
    for grid in report(tmp_path, reals=[real.RealModel("a model", "", 2, [turns, turns])]).grids():
        parts = fitted(grid, width)
        assert len(parts) == 1 or width < 200
        assert whole(parts) == [grid.head, *grid.rows]
        for part in parts:
            console = Console(width=width, file=io.StringIO())
            console.print(table_of(part))
            shown = console.file.getvalue()
            assert max(map(len, shown.splitlines())) <= width
            assert all(line in shown for row in (part.head, *part.rows) for cell in row for line in cell.splitlines())


def whole(parts: list[Grid]) -> list[tuple[str, ...]]:
    """The rows of a table that was cut, its head first, with every cell in one line."""
    of_parts = [list(zip(part.head, *part.rows, strict=True)) for part in parts]
    columns = [of_parts[0][0], *(column for part in of_parts for column in part[1:])]
    return [tuple(cell.replace("\n", " ") for cell in row) for row in zip(*columns, strict=True)]


def test_no_figure_is_broken() -> None:
    grid = Grid("t", ("design", "seconds"), [("HTTP, kept", "1.00 ± 0.01 (3.00) +33 %")])
    assert fitted(grid, 29)[0].rows == [("HTTP, kept", "1.00 ± 0.01\n(3.00) +33 %")]
    assert fitted(grid, 27)[0].rows == [("HTTP,\nkept", "1.00 ± 0.01\n(3.00)\n+33 %")]


def test_a_table_that_fits_is_as_it_was() -> None:
    grid = Grid("t", ("design", "seconds"), [("a", "1 %")])
    assert fitted(grid, 80) == [grid]


def test_claims_say_what_was_measured_and_what_speaks_against(tmp_path) -> None:
    one = report(tmp_path)
    claim = wall_claim(one.summary)
    assert "60 % less time than stateless HTTP with fresh connections" in claim
    assert "34 % less than with a kept one" in claim
    against = one.against()
    assert "Beside the shipped chain, append saves at most 1 %." in against
    assert any("Tools take their time in every design" in line and "60 % less" in line for line in against)
    chain_only = [run for run in one.results.measured if run.case.design in ("chain", "append")]
    assert where_it_does_not_help(Summary(chain_only)) == against[-2:-1]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([(0.0, 0.1), (0.0, 0.1)], "nothing beyond the spread at 2 of 2 points"),
        ([(0.0, 0.1), (0.2, 0.1)], "nothing beyond the spread at 1 of 2 points, and at most 20 % at the others"),
        ([(0.3, 0.1), (0.2, 0.1)], "at most 30 %"),
    ],
)
def test_what_append_saves_beside_the_chain_is_not_made_more_of(shares, words) -> None:
    assert _beside_chain([Gain(Middle(median, spread, 5)) for median, spread in shares]) == words


def test_the_parts_of_a_run_add_up_to_its_time(tmp_path) -> None:
    run = measured(full_plan(1))[0]
    assert sum(parts_of(run).values()) == pytest.approx(run.wall_ms)


def test_files_show_everything_and_need_nothing_else(tmp_path) -> None:
    one = report(tmp_path)
    files = one.write()
    assert [file.name for file in files] == [
        *("report.html", "report.json", "wall.png", "first-event.png", "parts.png", "bytes.png", "cpu.png"),
        "growth.png",
    ]
    page = files[0].read_text()
    assert page.count('src="data:image/png;base64,') == 6
    assert "http" not in page.replace("HTTP", "").replace("stateless http", "")
    assert "a &lt;processor&gt;" in page
    assert "about 40 % less end to end" in page
    assert "<td>cat a</td><td>0.5000</td><td>1</td>" in page
    assert all(grid.title in page for grid in one.grids())
    found = json.loads(files[1].read_text())
    assert len(found["runs"]) == len(one.results.measured)
    assert found["growth"][0] == {"design": "append", "cpu_ms": [4.0] * 100}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[2:])


def test_without_matplotlib_there_are_no_plots(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("engine.compare.report.has_matplotlib", lambda: False)
    assert [file.name for file in report(tmp_path).write()] == ["report.html", "report.json"]


# --- what grows --------------------------------------------------------------------------------------------------


def test_what_grows_is_told_from_what_is_flat() -> None:
    assert [figure.verdict for figure in budgets(GROWTHS)] == ["met", "met", "met"]
    assert [figure.verdict for figure in budgets([Growth("append", GROWTHS[2].cpu_ms)])] == ["missed"]
    assert [figure.verdict for figure in budgets([Growth("stateless", GROWTHS[0].cpu_ms)])] == ["missed"]
    assert GROWTHS[2].slope_us == pytest.approx(1_000)
    assert GROWTHS[2].correlation == pytest.approx(1)
    assert GROWTHS[0].correlation == 0, "what never changes does not depend on the turn"


async def test_the_servers_cpu_is_read_at_each_turn(tmp_path) -> None:
    tokenizer = str(save_format(tmp_path / "tokenizer"))
    seen: list[str] = []
    with trio.fail_after(60):
        growths = await measure_growth({"append": 4, "stateless": 3}, seen.append, tokenizer=tokenizer)
    assert seen == ["append", "stateless"]
    assert [len(one.cpu_ms) for one in growths] == [4, 3]
    assert all(ms > 0 for one in growths for ms in one.cpu_ms)


# --- a real model ------------------------------------------------------------------------------------------------


def test_what_was_measured_beside_the_runs_is_kept(tmp_path) -> None:
    assert read_more(tmp_path) == More()
    more = More(GROWTHS, [real.RealModel("a model", "f.toml", 2, [])])
    keep_more(tmp_path, more)
    assert read_more(tmp_path) == more


@pytest.mark.model
async def test_a_real_model_does_the_same_in_every_design() -> None:
    commands = real.COMMANDS
    work = Work(WORK.script, run_commands(compare_folder() / "repository", commands, lambda command: None))
    seen: list[str] = []
    with trio.fail_after(240):
        found = await real.measure_real(work, 1, seen.append, num_calls=2, rows=("append", real.KV_OFF))
    append, without = found.runs
    assert (append.row, without.row) == ("append", real.KV_OFF)
    assert len(append.ttft_ms) == 3
    assert append.tokens_reused > 0
    assert without.tokens_reused == 0
    assert without.tokens_prefilled > append.tokens_prefilled


async def test_runs_of_a_real_model_that_differ_are_no_table(tmp_path, monkeypatch) -> None:
    """A scenario in the place of the model, which says something else each time its server is asked."""
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"steps": [{"text": "{last_user}"}]}))
    (tmp_path / "config.toml").write_text(f'backend = "script:{script}"\n')
    play, said = real._play, []

    async def play_differently(*args, **named):
        monkeypatch.setattr(real, "_TASK", f"task {len(said)}")
        said.append(args[1])
        return await play(*args, **named)

    monkeypatch.setattr(real, "_play", play_differently)
    work = Work(WORK.script, dict.fromkeys(real.COMMANDS, ToolRun("", 0.0)))
    rows = ("stateless", "chain")
    with trio.fail_after(60), pytest.raises(RunsDiffer, match="chain on a real model"):
        await real.measure_real(work, 1, lambda row: None, config=tmp_path / "config.toml", num_calls=1, rows=rows)
    assert said == list(rows)
