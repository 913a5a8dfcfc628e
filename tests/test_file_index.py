"""hosted/file_index.py, passages.py, file_filters.py and `longloop index`: what is found in which files."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from engine.cli import app
from engine.commands.index import index_command
from engine.commands.serve import UsageError
from engine.hosted import file_index as module
from engine.hosted.file_filters import read_filter
from engine.hosted.file_index import FILE_NAME, FileIndex, Hit, Indexed, IndexUnusable, SearchTooSlow
from engine.hosted.passages import MAX_CHARS, match_expression, passages

BORDERS = "word ", "word\n", "A sentence. ", "A paragraph.\n\n", "x" * 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A handbook of four files that can be read, and some that cannot."""
    files = {
        "leave.md": "# Leave\n\nEveryone has thirty days of leave. Sabbaticals are arranged with the manager.",
        "travel/trains.md": "Trains are booked by the travellers themselves.\n",
        "travel/flights.html": "<title>Flights</title><nav>menu</nav><p>Flights need an approval &amp; a reason.</p>",
        "straße.txt": "Die Straße ist gesperrt.",
        ".hidden.md": "secret",
        ".git/config": "secret",
        "node_modules/a.md": "secret",
    }
    for name, text in files.items():
        file = tmp_path / "handbook" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "handbook" / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (tmp_path / "handbook" / "link.md").symlink_to(tmp_path / "outside.md")
    (tmp_path / "outside.md").write_text("outside secret")
    return tmp_path / "handbook"


def add(data: Path, folder: Path, name: str = "handbook") -> Indexed:
    with FileIndex.open(data) as index:
        return index.add_folder(name, folder, lambda done, total: None)


def find(data: Path, *queries: str, names: tuple[str, ...] = ("handbook",), **options: Any) -> list[Hit]:
    with FileIndex.open(data) as index:
        return index.search(names, queries, **({"max_hits": 10} | options))


def paths(hits: list[Hit]) -> list[str]:
    return [hit.path for hit in hits]


def test_passages_are_found_by_their_words_best_first(tmp_path: Path, folder: Path) -> None:
    assert add(tmp_path, folder) == Indexed(added=4, skipped=1)
    (hit,) = find(tmp_path, "sabbatical")  # by its stem
    assert hit.text.startswith("# Leave\n\nEveryone")
    assert (hit.path, hit.score, hit.file_id.startswith("file-")) == ("leave.md", 1.0, True)
    assert hit.attributes | {"modified": 0} == {
        "path": "leave.md", "name": "leave.md", "extension": ".md", "size": 86, "modified": 0,
    }  # fmt: skip
    assert paths(find(tmp_path, "who may book trains", "train")) == ["travel/trains.md"]
    both = find(tmp_path, "approval reason leave flights")
    assert paths(both) == ["travel/flights.html", "leave.md"]
    assert both[0].score == 1.0 > both[1].score > 0
    assert paths(find(tmp_path, "STRASSE straße")) == ["straße.txt"]
    assert sorted(paths(find(tmp_path, "travel"))) == ["travel/flights.html", "travel/trains.md"]  # a word of the path


def test_names_that_are_no_text_are_written_out(tmp_path: Path, folder: Path) -> None:
    for name in (b"\xff tea.txt", b"\xfe tea.txt", b"two\nlines.txt"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("oolong")
    assert add(tmp_path, folder).added == 7
    assert sorted(paths(find(tmp_path, "oolong"))) == ["\\xfe tea.txt", "\\xff tea.txt", "two\nlines.txt"]
    assert add(tmp_path, folder).unchanged == 7


def test_what_is_hidden_linked_or_no_text_is_not_there(tmp_path: Path, folder: Path) -> None:
    add(tmp_path, folder)
    assert find(tmp_path, "secret outside menu PNG") == []


@pytest.mark.parametrize("query", ["", "?!", '" OR text:', "NEAR(", "*", "a AND NOT b", "\x00", "'; DROP TABLE files"])
def test_no_query_is_a_syntax_error(tmp_path: Path, folder: Path, query: str) -> None:
    add(tmp_path, folder)
    find(tmp_path, query)
    assert "leave.md" in paths(find(tmp_path, query, "sabbaticals"))


def test_only_what_has_changed_is_read_again(tmp_path: Path, folder: Path) -> None:
    add(tmp_path, folder)
    before = find(tmp_path, "trains")
    (folder / "leave.md").write_text("Leave is unlimited.")
    (folder / "straße.txt").unlink()
    (folder / "new.md").write_text("Sabbaticals are new.")
    (folder / "travel/flights.html").write_bytes(b"\0\xff")
    assert add(tmp_path, folder) == Indexed(added=1, changed=1, unchanged=1, removed=2, skipped=2)
    assert find(tmp_path, "trains") == before
    assert paths(find(tmp_path, "sabbaticals leave thirty")) == ["leave.md", "new.md"]
    assert find(tmp_path, "Straße flights approval") == []
    assert add(tmp_path, folder) == Indexed(unchanged=3, skipped=2)


def test_a_file_that_is_too_large_is_skipped(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 50)
    assert add(tmp_path, folder).skipped == 3


def test_folders_are_searched_by_name(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.md").write_text("Sabbaticals are for others.")
    add(tmp_path, folder)
    add(tmp_path, other, "other")
    assert paths(find(tmp_path, "sabbaticals", names=("other",))) == ["a.md"]
    assert len(find(tmp_path, "sabbaticals", names=("other", "handbook"))) == 2
    with FileIndex.open(tmp_path) as index:
        assert [(one.name, one.num_files) for one in index.folders()] == [("handbook", 4), ("other", 1)]
        with pytest.raises(IndexUnusable, match="'other' is the index of"):
            index.add_folder("other", folder, lambda done, total: None)
        assert index.remove_folder("other")
        assert not index.remove_folder("other")
    assert find(tmp_path, "sabbaticals", names=("other",)) == []
    assert len(find(tmp_path, "sabbaticals")) == 1


def test_an_index_that_is_written_can_be_searched(tmp_path: Path, folder: Path) -> None:
    add(tmp_path, folder)
    (folder / "leave.md").write_text("changed")
    found = []
    with FileIndex.open(tmp_path) as index:
        index.add_folder("handbook", folder, lambda done, total: found.append(paths(find(tmp_path, "sabbatical"))))
    assert found[-1] == ["leave.md"]
    assert find(tmp_path, "sabbatical") == []


def test_filters_and_limits_choose_among_all_hits(tmp_path: Path, folder: Path) -> None:
    for number in range(30):
        (folder / f"{number}.log").write_text("sabbatical")
    add(tmp_path, folder)
    assert paths(find(tmp_path, "sabbatical", passes=lambda file: file["extension"] == ".md", max_hits=1)) == [
        "leave.md"
    ]
    assert len(find(tmp_path, "sabbatical", max_hits=7)) == 7


def test_a_search_that_takes_too_long_is_interrupted(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEPS_PER_LOOK", 1)
    add(tmp_path, folder)
    with pytest.raises(SearchTooSlow, match="longer than 0 s"):
        find(tmp_path, "sabbatical", max_s=0)


def test_an_index_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no database " * 100)
    with pytest.raises(IndexUnusable, match="cannot be used"):
        find(tmp_path, "a")


def test_an_index_of_a_newer_longloop_is_left_alone(tmp_path: Path) -> None:
    with FileIndex.open(tmp_path) as index:
        index._db.execute("PRAGMA user_version = 99")
    with pytest.raises(IndexUnusable, match="newer longloop"):
        find(tmp_path, "a")


def test_only_the_owner_can_read_the_index(tmp_path: Path) -> None:
    find(tmp_path / "new", "a")
    assert os.stat(tmp_path / "new" / FILE_NAME).st_mode & 0o777 == 0o600


# --- pure parts ---


@given(st.lists(st.sampled_from(BORDERS), max_size=300).map("".join))
def test_passages_hold_the_whole_text_in_order(text: str) -> None:
    found = list(passages(text))
    assert all(0 < len(passage) <= MAX_CHARS for passage in found)
    place = 0
    for passage in found:
        start = text.index(passage, max(place - MAX_CHARS, 0))
        assert not text[place:start].strip()
        place = max(place, start + len(passage))
    assert not text[place:].strip()


def test_the_words_of_all_queries_are_looked_for() -> None:
    assert match_expression(["Where is", "it?"]) == '"where" OR "is" OR "it"'
    assert match_expression(["...", ""]) is None
    words = match_expression([" ".join(map(str, range(500)))])
    assert words is not None
    assert words.count(" OR ") == 63


SIZES = [{"type": "eq", "key": "size", "value": size} for size in (1, 10)]
FILE = {"path": "a/b.md", "name": "b.md", "extension": ".md", "size": 10, "modified": 5}


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({"type": "eq", "key": "name", "value": "b.md"}, True),
        ({"type": "ne", "key": "name", "value": "b.md"}, False),
        ({"type": "gt", "key": "size", "value": 9.5}, True),
        ({"type": "gte", "key": "size", "value": 10}, True),
        ({"type": "lt", "key": "size", "value": 10}, False),
        ({"type": "lte", "key": "size", "value": 10}, True),
        ({"type": "gt", "key": "size", "value": "9"}, False),
        ({"type": "ne", "key": "size", "value": "10"}, True),
        ({"type": "eq", "key": "author", "value": "me"}, False),
        ({"type": "ne", "key": "author", "value": "me"}, True),
        ({"type": "in", "key": "extension", "value": [".md", ".txt"]}, True),
        ({"type": "nin", "key": "extension", "value": [".md"]}, False),
        ({"type": "and", "filters": []}, True),
        ({"type": "or", "filters": SIZES}, True),
        ({"type": "and", "filters": SIZES}, False),
    ],
)  # fmt: skip
def test_filter_judges_a_file(fields: dict[str, Any], passes: bool) -> None:
    assert read_filter(fields)(FILE) is passes


def nested(depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "eq", "key": "size", "value": 1}
    for _ in range(depth):
        fields = {"type": "and", "filters": [fields]}
    return fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type": "like", "key": "a", "value": "b"},
        {"type": "eq", "value": "b"},
        {"type": "eq", "key": "a", "value": ["b"]},
        {"type": "in", "key": "a", "value": "b"},
        {"type": "and", "filters": [{"type": "eq"}]},
        {"type": "xor", "filters": []},
        {"type": "and", "filters": [], "more": 1},
        nested(11),
    ],
)
def test_what_is_no_filter_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read_filter(fields)


# --- the command ---


def test_the_command_indexes_lists_and_forgets(tmp_path: Path, folder: Path) -> None:
    runner = CliRunner()
    data = f"data_dir={tmp_path / 'data'}"
    assert "longloop index FOLDER" in runner.invoke(app, ["index", "--set", data]).output
    done = runner.invoke(app, ["index", str(folder), "--set", data])
    assert done.exit_code == 0
    assert "files: 4 new, 1 skipped" in done.output
    assert '{"type": "file_search", "vector_store_ids": ["handbook"]}' in done.output
    assert "4 unchanged" in runner.invoke(app, ["index", str(folder), "--set", data]).output
    assert "handbook" in runner.invoke(app, ["index", "--set", data]).output
    assert "cannot be searched" in runner.invoke(app, ["index", "--remove", "handbook", "--set", data]).output
    with FileIndex.open(tmp_path / "data") as index:
        assert index.folders() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [({"folder": Path("nowhere")}, "nowhere is no folder"), ({"folder": None, "remove": "x"}, "is indexed as 'x'")],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        index_command(tmp_path, **options)
