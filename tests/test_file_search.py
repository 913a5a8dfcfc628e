"""hosted/file_search.py: searches as items and events of a response."""

from pathlib import Path
from typing import Any

import pytest

from engine.hosted import file_index
from engine.hosted.configured import open_hosts
from engine.hosted.file_index import FILE_NAME, FileIndex
from engine.hosted.file_search import FileSearchHost
from engine.settings import Settings
from tests.hosted_kinds import about_first, frames_of, item_of, of_openai, scenario, text_of, types_of
from tests.served import open_served

FILES = {"type": "file_search", "vector_store_ids": ["handbook"]}
RESULTS = ["file_search_call.results"]
SCENARIO = scenario("file_search", queries=["sabbatical", "leave"])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An index of two files."""
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "leave.md").write_text("Sabbaticals and leave are arranged with the manager.")
    (folder / "travel.md").write_text("No leave is needed for trains, which everybody books when they want to.")
    with FileIndex.open(tmp_path) as index:
        index.add_folder("handbook", folder, lambda done, total: None)
    return tmp_path


async def frames(data: Path, definition: dict[str, Any] = FILES, played: str = SCENARIO, **fields: Any) -> list[Any]:
    hosts = {"file_search": FileSearchHost(data, 10)}
    async with open_served(played, hosts=hosts, file_search=True) as served:
        return await frames_of(served, definition, **fields)


async def test_a_search_is_an_item_with_all_its_events(data: Path) -> None:
    found = await frames(data, include=RESULTS)
    assert types_of(about_first(found)) == [
        "output_item.added", "file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed",
        "output_item.done",
    ]  # fmt: skip
    item = item_of(found)
    assert item | {"results": 0} == {
        "type": "file_search_call", "status": "completed", "queries": ["sabbatical", "leave"], "results": 0,
    }  # fmt: skip
    assert [(one["filename"], one["score"], one["text"][:10]) for one in item["results"]] == [
        ("leave.md", 1.0, "Sabbatical"), ("travel.md", item["results"][1]["score"], "No leave i"),
    ]  # fmt: skip
    assert item["results"][0]["attributes"]["extension"] == ".md"
    assert text_of(found).startswith("It says [1] leave.md (score 1.00)\nSabbaticals and leave")


async def test_results_are_shown_to_those_who_ask(data: Path) -> None:
    assert item_of(await frames(data))["results"] is None


@pytest.mark.parametrize(
    "more",
    [
        {"max_num_results": 1},
        {"ranking_options": {"ranker": "auto", "score_threshold": 0.99}},
        {"filters": {"type": "eq", "key": "name", "value": "leave.md"}},
    ],
)
async def test_the_definition_chooses_among_the_hits(data: Path, more: dict[str, Any]) -> None:
    (result,) = item_of(await frames(data, FILES | more, include=RESULTS))["results"]
    assert result["filename"] == "leave.md"


async def test_a_search_that_finds_nothing_is_no_failure(data: Path) -> None:
    found = await frames(data, played=scenario("file_search", queries=["zebra"]), include=RESULTS)
    assert text_of(found) == "It says Nothing was found. Try other words."
    assert (item_of(found)["status"], item_of(found)["results"]) == ("completed", [])


@pytest.mark.parametrize(
    ("definition", "param", "status"),
    [
        ({"type": "file_search", "vector_store_ids": ["handbook", "vs_1"]}, "tools[0].vector_store_ids[1]", 404),
        ({"type": "file_search", "vector_store_ids": []}, "tools[0].vector_store_ids", 400),
        ({"type": "file_search"}, "tools[0].vector_store_ids", 400),
        (FILES | {"max_num_results": 51}, "tools[0].max_num_results", 400),
        (FILES | {"filters": {"type": "eq"}}, "tools[0].filters", 400),
        (FILES | {"ranking_options": {"score_threshold": 2}}, "tools[0].ranking_options.score_threshold", 400),
    ],
)
async def test_a_definition_that_does_not_fit_is_refused(
    data: Path, definition: dict[str, Any], param: str, status: int
) -> None:
    frame = (await frames(data, definition))[-1]
    assert (frame["error"]["param"], frame["status"]) == (param, status)


async def test_a_search_that_takes_too_long_has_failed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_STEPS_PER_LOOK", 1)
    hosts = {"file_search": FileSearchHost(data, 1e-9)}
    async with open_served(SCENARIO, hosts=hosts, file_search=True) as served:
        found = await frames_of(served, FILES)
    assert (item_of(found)["status"], text_of(found)) == (
        "failed", "It says The search took too long. Use fewer, rarer words.",
    )  # fmt: skip
    assert "file_search_call.completed" not in types_of(found)


async def test_files_that_cannot_be_read_fail_the_call_without_details(data: Path) -> None:
    hosts = {"file_search": FileSearchHost(data, 10)}
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    played = SCENARIO.replace("steps:\n", "steps:\n  - {call: {name: get_weather}}\n")
    async with open_served(played, hosts=hosts, file_search=True) as served, served.connect() as client:
        await client.create(tools=[FILES, function])
        key = (await client.step())[-1]["response"]["pending"][0]["answer_key"]
        (data / FILE_NAME).write_text("no database " * 500)
        await client.answer((key, "ok"))
        assert text_of(await client.step()) == "It says The files cannot be read."


async def test_settings_open_it(data: Path) -> None:
    settings = Settings(file_search=True, data_dir=data, file_search_timeout_s=5)
    async with open_hosts(settings) as hosts, open_served(SCENARIO, hosts=hosts, file_search=True) as served:
        assert "leave.md" in text_of(await frames_of(served, FILES))


@pytest.mark.peer
async def test_events_are_openais(data: Path) -> None:
    of_openai(await frames(data, include=RESULTS))
