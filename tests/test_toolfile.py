"""Tool files: which functions they offer, and what is said about bad ones."""

from pathlib import Path

import pytest

from engine.toolfile import ToolFileError, load_tools


def names(path: Path, source: str) -> list[str]:
    path.write_text(source)
    return [tool.name for tool in load_tools(path)]


def test_public_functions_are_tools_in_order(tmp_path):
    source = "from os.path import join\ndef b(): ...\ndef _c(): ...\nasync def a(): ...\nD = int\n"
    assert names(tmp_path / "tools.py", source) == ["b", "a"]


def test_list_named_tools_decides(tmp_path):
    assert names(tmp_path / "tools.py", "def a(): ...\ndef b(): ...\ntools = [b]\n") == ["b"]


def test_functions_that_were_made_tools_are_tools(tmp_path):
    source = (
        "from engine.client import FunctionTool, custom_tool\nfrom demos.tools import get_temperature as other\n"
        "@custom_tool\ndef b(text): ...\ndef a(): ...\nc = FunctionTool(a, name='see')\nd = FunctionTool(other)\n"
    )
    assert names(tmp_path / "tools.py", source) == ["b", "a", "see"]


def test_two_files_of_one_name_do_not_mix(tmp_path):
    (tmp_path / "x").mkdir()
    assert names(tmp_path / "tools.py", "def a(): ...") == ["a"]
    assert names(tmp_path / "x" / "tools.py", "def b(): ...") == ["b"]


def test_dataclasses_and_late_hints_work(tmp_path):
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    x: int\ndef f(p: P) -> int: return p.x\n"
    )
    assert names(tmp_path / "tools.py", source) == ["f"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1", "defines no public function"),
        ("def f(:", "SyntaxError"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("def f(*a): ...", "use a named one"),
        ("def f(a: 'Missing'): ...", "Missing"),
    ],
)
def test_bad_file_is_named_with_its_problem(tmp_path, source, problem):
    with pytest.raises(ToolFileError, match=problem) as caught:
        names(tmp_path / "tools.py", source)
    assert "tools.py" in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(ToolFileError, match="there is no file"):
        load_tools(tmp_path / "none.py")


def test_demo_tools_load():
    assert [tool.name for tool in load_tools(Path("demos/tools.py"))] == ["draw_lucky_number", "get_temperature"]
