"""commands/usage.py: the table, the exports, and what cannot be asked for."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.commands.serve import UsageError
from engine.commands.usage import usage_command
from tests.test_commands import ROOT, longloop
from tests.test_ledger_reader import write


def test_table_sums_by_day_model_and_principal(tmp_path: Path) -> None:
    write(tmp_path, 3, 3)
    done = longloop("usage", "--set", f"data_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines() if "2026" in line]
    assert rows == [
        ["2026-01-01", "toy", "ann", "1", "1", "100", "70", "20", "5"],
        ["2026-01-02", "big", "bob", "1", "1", "100", "70", "20", "5"],
        ["2026-01-02", "toy", "ann", "1", "1", "100", "70", "20", "5"],
    ]


def test_columns_and_days_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 6, 0)
    usage_command(tmp_path, by="principal, day", until="2026-01-01")
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "2026" in line)
    assert row.replace("│", " ").split()[:2] == ["ann", "2026-01-01"]


def test_exports_have_every_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 6, 0)
    usage_command(tmp_path, by="", export="jsonl", since="2026-01-02")
    from_json = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["response_id"], one["segment"], one["status"]) for one in from_json] == [
        ("a", 1, "completed"),
        ("b", 0, "in_progress"),
    ]
    usage_command(tmp_path, by="", export="csv", since="2026-01-02")
    from_csv = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert from_csv == [{name: str(value) for name, value in one.items()} for one in from_json]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "week"}, "--by takes day, model, principal, not 'week'."),
        ({"by": "day", "since": "yesterday"}, "--since takes a day such as 2026-01-31, not 'yesterday'."),
        ({"by": "day", "until": "2026-13-01"}, "--until takes a day such as 2026-01-31, not '2026-13-01'."),
        ({"by": "day", "export": "xml"}, "--export takes jsonl or csv, not 'xml'."),
        ({"by": "day"}, "There is no ledger in "),
    ],
)
def test_what_cannot_be_asked_for_is_said_in_a_sentence(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        usage_command(tmp_path, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)


def test_a_reader_that_has_enough_is_no_fault_of_the_ledger(tmp_path: Path) -> None:
    write(tmp_path, 6, 0)
    command = [sys.executable, "-m", "engine", "usage", "--export", "csv", "--set", f"data_dir={tmp_path}"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        # Unbuffered, so that the pipe is found broken while the ledger is read.
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, env=environment, timeout=60, check=False
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")
