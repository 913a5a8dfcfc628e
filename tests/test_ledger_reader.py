"""ledger_reader.py: the same whether records are in the database, in the journal, or in both."""

import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.ledger import Ended, LedgerUnusable, Record, Segment, Started, encode_line
from engine.ledger_database import FILE_NAME, open_ledger_database
from engine.ledger_journal import LedgerJournal
from engine.ledger_reader import LedgerReader, Usage, open_ledger_reader
from tests.test_ledger import SEGMENT

DAY_MS = 86_400_000
JAN_1 = 20_454 * DAY_MS  # of 2026


def segment(response_id: str, number: int, at: int, principal: str = "ann", model: str = "toy") -> Segment:
    changes = {"response_id": response_id, "segment": number, "at": at, "principal": principal, "model": model}
    return msgspec.structs.replace(SEGMENT, **changes)


RECORDS: list[Record] = [
    Started("a", "ann", "toy", JAN_1, 10),
    segment("a", 0, JAN_1),
    segment("a", 1, JAN_1 + DAY_MS),
    Started("b", "bob", "toy", JAN_1 + DAY_MS, 10),
    segment("b", 0, JAN_1 + 2 * DAY_MS - 1, principal="bob", model="big"),
    Ended("a", JAN_1 + 2 * DAY_MS, "completed"),
]


def write(folder: Path, num_in_database: int, num_in_journal: int) -> None:
    """The first of the records into the database, the last of them into the journal."""
    database = open_ledger_database(folder)
    database.begin()
    for record in RECORDS[:num_in_database]:
        database.put(record)
    database.commit()
    database.close()
    journal = LedgerJournal(folder)
    for record in RECORDS[len(RECORDS) - num_in_journal :]:
        journal.append(encode_line(record))
    journal.close()


@pytest.fixture(params=[(6, 0), (0, 6), (6, 6), (1, 5), (3, 3), (5, 1), (4, 5)])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerReader]:
    write(tmp_path, *request.param)
    with open_ledger_reader(tmp_path) as reader:
        yield reader


def test_usage_is_summed_by_columns(reader: LedgerReader) -> None:
    one, two = (100, 70, 20, 5), (200, 140, 40, 10)
    assert reader.usage(["principal"]) == [Usage(("ann",), 1, 2, *two), Usage(("bob",), 1, 1, *one)]
    assert reader.usage(["day"]) == [Usage(("2026-01-01",), 1, 1, *one), Usage(("2026-01-02",), 2, 2, *two)]
    assert [usage.group for usage in reader.usage(["model", "day"])] == [
        ("big", "2026-01-02"),
        ("toy", "2026-01-01"),
        ("toy", "2026-01-02"),
    ]
    assert reader.usage([]) == [Usage((), 2, 3, 300, 210, 60, 15)]


@pytest.mark.parametrize(
    ("since", "until", "num_segments"),
    [
        (None, date(2026, 1, 1), 1),
        (date(2026, 1, 2), None, 2),
        (date(2026, 1, 1), date(2026, 1, 2), 3),
        (date(2026, 1, 3), None, 0),
        (None, date(2025, 12, 31), 0),
    ],
)
def test_days_bound_it(tmp_path: Path, since: date | None, until: date | None, num_segments: int) -> None:
    write(tmp_path, 6, 0)
    with open_ledger_reader(tmp_path) as reader:
        assert sum(usage.segments for usage in reader.usage([], since, until)) == num_segments
        assert len(list(reader.segments(since, until))) == num_segments


def test_segments_are_their_records_and_how_their_run_stands(reader: LedgerReader) -> None:
    segments: list[dict[str, Any]] = list(reader.segments())
    assert [segment.pop("status") for segment in segments] == ["completed", "completed", "in_progress"]
    assert [msgspec.convert(one | {"type": "segment"}, Segment) for one in segments] == [
        record for record in RECORDS if isinstance(record, Segment)
    ]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 3, 3)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with open_ledger_reader(tmp_path) as reader:
        reader.usage(["day"])
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_odd_folder_names_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "a?b#c %41"
    folder.mkdir()
    write(folder, 6, 0)
    with open_ledger_reader(folder) as reader:
        assert len(reader.usage(["day"])) == 2


def test_folder_without_a_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnusable, match=f"There is no ledger in {tmp_path} yet"), open_ledger_reader(tmp_path):
        pytest.fail("it opened")


def test_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerUnusable, match="cannot be used"), open_ledger_reader(tmp_path):
        pytest.fail("it opened")


def test_ledger_of_a_server_that_was_killed_can_be_read(tmp_path: Path) -> None:
    folder, copy = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    database = open_ledger_database(folder)  # open: what it has is in SQLite's log
    database.begin()
    for record in RECORDS:
        database.put(record)
    database.commit()
    shutil.copytree(folder, copy)
    database.close()
    with open_ledger_reader(copy) as reader:
        assert reader.usage([])[0].segments == 3
