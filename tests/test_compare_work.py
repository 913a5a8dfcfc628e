"""The work that the designs are compared on: its size, its script, its tools."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.backends.pieces import split_pieces
from engine.backends.scenario import parse_scenario
from engine.compare.commands import CannotRun, run_commands
from engine.compare.folder import compare_folder
from engine.compare.work import (
    TOKENS_PER_STEP,
    Script,
    Step,
    ToolRun,
    Work,
    answer,
    commands_of,
    first_steps,
    read_script,
    scenario,
    without_ids,
)

ROOT = Path(__file__).parent.parent
SCRIPT = read_script(compare_folder())
SHORT = Script("t", "a", (Step("one", ("cat a", "cat b")), Step("two", ("cat c",)), Step("three", ("cat a",))))
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "run", "arguments": '{"command": "cat a"}'}


def test_instructions_and_tools_have_the_size_of_a_coding_agents() -> None:
    assert 15_000 < len(SCRIPT.instructions) + len(json.dumps(SCRIPT.tools)) < 25_000


@pytest.mark.parametrize("num_calls", [1, 5, 20, 60])
def test_every_step_of_the_scenario_has_as_many_tokens(num_calls: int) -> None:
    steps = json.loads(scenario(SCRIPT, num_calls, 1_000))["steps"]
    texts = [[step["text"], *(call["arguments"] for call in step.get("calls", []))] for step in steps]
    assert {sum(len(split_pieces(text)) for text in step) for step in texts} == {TOKENS_PER_STEP}
    assert sum(len(step) - 1 for step in texts) == num_calls
    parse_scenario(scenario(SCRIPT, num_calls, 1_000))


@pytest.mark.parametrize(
    ("num_calls", "runs"), [(1, [("cat a",)]), (2, [("cat a", "cat b")]), (3, [("cat a", "cat b"), ("cat c",)])]
)
def test_a_run_takes_the_first_steps_that_make_its_calls(num_calls: int, runs: list[tuple[str, ...]]) -> None:
    assert [step.run for step in first_steps(SHORT, num_calls)] == runs


def test_a_script_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="makes 4 calls, not 5"):
        first_steps(SHORT, 5)


def test_a_command_is_run_once_however_often_it_comes() -> None:
    assert commands_of(first_steps(SHORT, 4)) == ["cat a", "cat b", "cat c"]


def test_braces_that_the_script_backend_would_fill_in_are_refused() -> None:
    with pytest.raises(ValueError, match="braces"):
        scenario(Script("t", "{turn}", SHORT.steps), 1, 0)


def test_a_call_is_answered_by_what_its_command_printed() -> None:
    output, seconds = answer(Work(SHORT, {"cat a": ToolRun("A", 0.5)}), CALL)
    assert (output, seconds) == ({"type": "function_call_output", "call_id": "c1", "output": "A"}, 0.5)


def test_ids_do_not_count_and_everything_else_does() -> None:
    other = CALL | {"id": "fc_2", "call_id": "c2"}
    assert without_ids([CALL]) == without_ids([other])
    assert without_ids([CALL]) != without_ids([CALL | {"arguments": "{}"}])


def test_commands_are_really_run() -> None:
    commands = ["grep -n value / unit measures/convert.py", "cat README.md", "pytest tests/test_convert.py"]
    seen: list[str] = []
    runs = run_commands(compare_folder() / "repository", commands, seen.append)
    assert seen == commands
    assert runs["cat README.md"].output == (compare_folder() / "repository" / "README.md").read_text()
    assert "exit code 2" in runs[commands[0]].output
    assert "2 failed, 14 passed" in runs[commands[2]].output
    assert runs[commands[2]].seconds > runs["cat README.md"].seconds > 0


def test_a_missing_program_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun, match="need grep and cat"):
        run_commands(tmp_path, [], lambda command: None)


def test_long_output_is_cut_as_the_tools_description_says(tmp_path) -> None:
    (tmp_path / "long").write_text("a" * 9_000 + "b" * 9_000)
    output = run_commands(tmp_path, ["cat long"], lambda command: None)["cat long"].output
    assert output == "a" * 5_000 + "\n[8000 characters left out]\n" + "b" * 5_000


def test_an_installed_longloop_finds_the_folder(tmp_path) -> None:
    """The wheel is built, unpacked as pip would, and asked from elsewhere."""
    site = tmp_path / "site"
    build = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    tree = tmp_path / "tree"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("engine/", "demos/compare/", "pyproject", "README", "LICENSE")) and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wheel = tmp_path / done.stdout.split()[-1]
    zipfile.ZipFile(wheel).extractall(site)
    data = next(site.glob("*.data"))
    (data / "data" / "share").rename(site / "share")
    record = next(site.glob("*.dist-info")) / "RECORD"
    record.write_text(record.read_text().replace(f"{data.name}/data/share/", "share/"))
    ask = "from pathlib import Path; from engine.compare.folder import compare_folder; print(compare_folder(Path('x')))"
    code = f"import sys; sys.path.insert(0, {str(site)!r}); {ask}"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert Path(found.stdout.strip()) == site / "share" / "longloop" / "compare", found.stderr
    assert read_script(site / "share" / "longloop" / "compare") == SCRIPT
    assert (site / "share" / "longloop" / "compare" / "repository" / "tests" / "test_convert.py").is_file()


def test_a_folder_that_is_nowhere_is_said_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("engine.compare.folder.files", lambda name: None)
    with pytest.raises(FileNotFoundError, match="demos/compare"):
        compare_folder(tmp_path)
