"""hosted/web_search.py, web.py and web_results.py: the web as items and events of a response."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from engine.hosted.base import Definition, HostedCall
from engine.hosted.configured import open_hosts
from engine.hosted.fetch import FetchError, Page
from engine.hosted.kinds import WEB_SEARCH_TYPES
from engine.hosted.page_text import PageText
from engine.hosted.web import Web
from engine.hosted.web_results import WebResult, results_of
from engine.hosted.web_search import WebSearchHost
from engine.settings import Settings
from tests.hosted_kinds import about_first, frames_of, item_of, of_openai, scenario, text_of, types_of
from tests.remote_peer import Asked, Peer, Reply, open_peer
from tests.served import open_served

WEB = {"type": "web_search"}
SOURCES = ["web_search_call.action.sources"]
URL = "https://docs.site.test/a"
ON = {"web_search_url": "http://search.test/?q={query}"}
RESULTS = [WebResult(f"https://{name}.test/", name.upper(), f"about {name}") for name in "abcdefghijklmnopqr"]


class FakeWeb:
    """Every search finds the same; pages are by URL."""

    def __init__(self, found: list[WebResult] | str = "", **pages: PageText) -> None:
        self._found = found
        self._pages = pages
        self.asked: list[str] = []

    async def search(self, query: str) -> list[WebResult] | str:
        self.asked.append(query)
        return self._found

    async def open(self, url: str) -> tuple[str, PageText]:
        self.asked.append(url)
        if "away" in url:
            return "https://evil.test/", PageText("", "got you")
        if "missing" in url:
            raise FetchError(f"{url} answered 404.")
        return url, self._pages["page"]


async def frames(web: FakeWeb, played: str, definition: dict[str, Any] = WEB, **fields: Any) -> list[dict[str, Any]]:
    hosts = dict.fromkeys(WEB_SEARCH_TYPES, WebSearchHost(web))
    async with open_served(played, hosts=hosts, **ON) as served:
        return await frames_of(served, definition, **fields)


SEARCH = scenario("web_search", query="words to find")


@pytest.mark.parametrize("type_", WEB_SEARCH_TYPES)
async def test_a_search_is_an_item_with_all_its_events(type_: str) -> None:
    web = FakeWeb(RESULTS[:2])
    found = await frames(web, SEARCH, {"type": type_})
    assert types_of(about_first(found)) == [
        "output_item.added", "web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed",
        "output_item.done",
    ]  # fmt: skip
    action = {"type": "search", "query": "words to find", "queries": ["words to find"]}
    assert item_of(found) == {"type": "web_search_call", "status": "completed", "action": action}
    assert text_of(found) == "It says [1] A\nhttps://a.test/\nabout a\n\n[2] B\nhttps://b.test/\nabout b"
    assert web.asked == ["words to find"]


async def test_sources_are_shown_to_those_who_ask() -> None:
    found = await frames(FakeWeb(RESULTS[:1]), SEARCH, include=SOURCES)
    assert item_of(found)["action"]["sources"] == [{"type": "url", "url": "https://a.test/"}]


@pytest.mark.parametrize(
    ("more", "num_results"),
    [
        ({}, 8),
        ({"search_context_size": "low"}, 4),
        ({"search_context_size": "high"}, 16),
        ({"filters": {"allowed_domains": ["b.test", "C.test"]}}, 2),
        ({"filters": {"blocked_domains": ["a.test"]}, "search_context_size": "high"}, 16),
        ({"user_location": {"type": "approximate", "country": "DE"}}, 8),
    ],
)
async def test_the_definition_chooses_among_the_results(more: dict[str, Any], num_results: int) -> None:
    found = await frames(FakeWeb(RESULTS), SEARCH, WEB | more, include=SOURCES)
    urls = [source["url"] for source in item_of(found)["action"]["sources"]]
    assert len(urls) == num_results
    assert ("https://a.test/" in urls) is ("filters" not in more)


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ([], "Nothing was found. Try other words."),
        ("Ten blue links", "Ten blue links"),
        ("", "[There is nothing here.]"),
    ],
)
async def test_other_answers_are_told_as_they_are(results: Any, told: str) -> None:
    assert text_of(await frames(FakeWeb(results), SEARCH)) == f"It says {told}"


LONG = PageText("Title", "x" * 9_990 + "needle in " + "y" * 5_000 + "NEEDLE end")


async def told(name: str, page: PageText = LONG, **arguments: Any) -> str:
    """What the model is given, whole."""
    run = await WebSearchHost(FakeWeb(page=page)).open(Definition(0, WEB), frozenset(), [])
    (tool,) = [tool for tool in run.tools if tool.name == name]
    call = HostedCall("ws_1", "call_1", tool, json.dumps({"url": URL} | arguments))
    return (await run.call(call, lambda sketch: None)).output


async def test_a_page_is_read_in_parts() -> None:
    first = await told("open_page")
    assert first.startswith(f"Title\n{URL}\n\nxxx")
    assert first.endswith("needle in \n\n[The page goes on: read on with start=10000; 15010 characters in all]")
    assert await told("open_page", start=10_000) == f"Title\n{URL}\n\n{'y' * 5_000}NEEDLE end"
    assert await told("open_page", start=-5) == first
    assert "[There is nothing here.]" in await told("open_page", start=99_999)
    shown = item_of(await frames(FakeWeb(page=LONG), scenario("open_page", url=URL)))
    assert shown["action"] == {"type": "open_page", "url": URL}


async def test_words_are_found_in_a_page() -> None:
    assert await told("find_in_page", pattern="Needle") == (
        f"{URL}\n\n[start=9990] …{'x' * 200}needle in {'y' * 196}…\n\n[start=15000] …{'y' * 200}NEEDLE end…"
    )
    for pattern in ("nowhere", ""):
        assert await told("find_in_page", pattern=pattern) == f"{URL} does not have this text."
    assert (await told("find_in_page", PageText("", "ab " * 99_999), pattern="ab")).count("[start=") == 20
    shown = item_of(await frames(FakeWeb(page=LONG), scenario("find_in_page", url=URL, pattern="Needle")))
    assert shown["action"] == {"type": "find_in_page", "url": URL, "pattern": "Needle"}


async def test_a_page_that_cannot_be_had_fails_the_call() -> None:
    found = await frames(FakeWeb(), scenario("open_page", url="https://site.test/missing"))
    assert text_of(found) == "It says https://site.test/missing answered 404."
    assert item_of(found)["status"] == "failed"
    assert "web_search_call.completed" not in types_of(found)


@pytest.mark.parametrize(
    "url", ["https://evil.test/", "https://docs.site.test/away", "https://evilsite.test/", "x", "http://["]
)
async def test_only_pages_of_allowed_domains_are_read(url: str) -> None:
    web = FakeWeb(page=LONG)
    found = await frames(web, scenario("open_page", url=url), WEB | {"filters": {"allowed_domains": ["site.test"]}})
    assert "is not of a domain that may be read" in text_of(found)
    assert "got you" not in json.dumps(found)


async def test_without_access_to_the_web_no_page_is_opened() -> None:
    found = await frames(FakeWeb(page=LONG), scenario("open_page", url=URL), WEB | {"external_web_access": False})
    assert "open_page" in found[-1]["response"]["error"]["message"]


async def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    found = await frames(FakeWeb(), scenario("open_page", page=URL))
    assert "missing required field `url`" in text_of(found)
    assert item_of(found)["action"] == {"type": "open_page", "url": ""}


async def test_a_definition_that_does_not_fit_is_refused() -> None:
    frame = (await frames(FakeWeb(), SEARCH, WEB | {"search_context_size": "huge"}))[-1]
    assert (frame["error"]["param"], frame["status"]) == ("tools[0].search_context_size", 400)


# --- over sockets, with the settings ---


def page_of(asked: Asked) -> Reply:
    """A SearXNG with one result, and the page that it leads to."""
    if asked.target.startswith("/search?"):
        found = {"query": "q", "results": [{"url": "http://127.0.0.1/page", "title": "T", "content": "about"}]}
        return Reply([json.dumps(found).encode()], headers={"content-type": "application/json"})
    if asked.target == "/picture":
        return Reply([b"\x89PNG"], headers={"content-type": "image/png"})
    return Reply([b"<title>Page</title><p>Its text."], headers={"content-type": "text/html; charset=utf-8"})


@asynccontextmanager
async def provider(
    path: str = "/search?format=json&q={query}", **settings: Any
) -> AsyncIterator[tuple[Peer, Settings]]:
    async with open_peer(page_of) as peer:
        yield peer, Settings(web_search_url=f"http://127.0.0.1:{peer.port}{path}", **settings)


async def test_the_provider_may_be_anywhere_but_pages_may_not() -> None:
    async with provider() as (peer, settings), open_hosts(settings) as hosts:
        on = {"web_search_url": settings.web_search_url}
        async with open_served(scenario("web_search", query="ä & b?"), hosts=hosts, **on) as served:
            assert "[1] T\nhttp://127.0.0.1/page\nabout" in text_of(await frames_of(served, WEB))
        assert peer.asked[0].target == "/search?format=json&q=%C3%A4%20%26%20b%3F"
        page = f"http://127.0.0.1:{peer.port}/page"
        async with open_served(scenario("open_page", url=page), hosts=hosts, **on) as served:
            assert "may not be fetched" in text_of(await frames_of(served, WEB))
        assert len(peer.asked) == 1


async def test_pages_are_fetched_once_and_read_as_text() -> None:
    async with provider(fetch_networks=["127.0.0.0/8"]) as (peer, settings), open_hosts(settings) as hosts:
        page = f"http://127.0.0.1:{peer.port}/page"
        on = {"web_search_url": settings.web_search_url}
        for name, arguments in [("open_page", {}), ("find_in_page", {"pattern": "its"})]:
            async with open_served(scenario(name, url=page, **arguments), hosts=hosts, **on) as served:
                assert "Its text." in text_of(await frames_of(served, WEB))
        assert len(peer.asked) == 1
        picture = f"http://127.0.0.1:{peer.port}/picture"
        async with open_served(scenario("open_page", url=picture), hosts=hosts, **on) as served:
            assert "is no text but image/png" in text_of(await frames_of(served, WEB))


async def test_a_provider_without_json_is_read_as_a_page() -> None:
    async with provider("/?q={query}") as (_, settings), open_hosts(settings) as hosts:
        on = {"web_search_url": settings.web_search_url}
        async with open_served(SEARCH, hosts=hosts, **on) as served:
            assert "Its text." in text_of(await frames_of(served, WEB))
    async with provider("/picture#{query}") as (_, settings), open_hosts(settings) as hosts:
        on = {"web_search_url": settings.web_search_url}
        async with open_served(SEARCH, hosts=hosts, **on) as served:
            assert "answer has no text" in text_of(await frames_of(served, WEB))


async def test_a_provider_that_fails_is_told_without_its_url(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(web_search_url="http://127.0.0.1:1/?key=secret&q={query}")
    on = {"web_search_url": settings.web_search_url}
    async with open_hosts(settings) as hosts, open_served(SEARCH, hosts=hosts, **on) as served:
        found = await frames_of(served, WEB)
    assert text_of(found) == "It says The search provider cannot be asked at the moment."
    assert item_of(found)["status"] == "failed"
    assert "the search provider failed" in caplog.text
    assert "secret" not in caplog.text + json.dumps(found)


class Counting:
    """A fetcher that answers everything, and counts."""

    def __init__(self) -> None:
        self.num_fetched = 0

    async def fetch(self, url: str) -> Page:
        self.num_fetched += 1
        return Page(url, "text/plain", None, f"{url} {self.num_fetched}".encode())


async def test_pages_are_kept_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    pages = Counting()
    web = Web("", pages, pages)  # type: ignore[arg-type] - it does what of a Fetcher is used
    assert (await web.open("a"))[1].text == (await web.open("a"))[1].text == "a 1"
    await trio.sleep(301)
    assert (await web.open("a"))[1].text == "a 2"
    for number in range(16):
        await web.open(str(number))
    assert (await web.open("a"))[1].text == "a 19"


# --- pure parts ---


@pytest.mark.parametrize(
    ("answer", "results"),
    [
        ({"results": [{"url": "u", "title": " t\n t", "content": "c"}]}, [WebResult("u", "t t", "c")]),
        ({"web": {"results": [{"url": "u", "title": "t", "description": "d"}]}}, [WebResult("u", "t", "d")]),
        ({"items": [{"link": "u", "title": "t", "snippet": "s"}]}, [WebResult("u", "t", "s")]),
        ({"organic": [{"link": "u"}]}, [WebResult("u", "u", "")]),
        (
            {"results": [{"url": "u", "title": None, "content": 5}, {"title": "t"}, "x", None]},
            [WebResult("u", "u", "")],
        ),
        ({"results": [{"url": "u", "content": "x" * 5000}]}, [WebResult("u", "u", "x" * 1000)]),
        ({"results": []}, []),
        ({"results": {}}, None),
        ([1], None),
        ("text", None),
    ],
)
def test_results_are_read_as_providers_write_them(answer: Any, results: list[WebResult] | None) -> None:
    assert results_of(Page("u", "application/json", None, json.dumps(answer).encode())) == results


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b"\xff"])
def test_what_is_no_json_has_no_results(body: bytes) -> None:
    assert results_of(Page("u", "", None, body)) is None


@pytest.mark.peer
@pytest.mark.parametrize(
    "played", [SEARCH, scenario("open_page", url=URL), scenario("find_in_page", url=URL, pattern="needle")]
)
async def test_events_are_openais(played: str) -> None:
    of_openai(await frames(FakeWeb(RESULTS, page=LONG), played, include=SOURCES))
