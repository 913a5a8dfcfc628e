"""The web as all runs use it: asks the search provider, fetches pages as text, and keeps those for a while."""

import logging
from functools import partial
from typing import Final
from urllib.parse import quote

import httpx2
import trio

from engine.hosted.addresses import address_rules
from engine.hosted.fetch import Fetcher, FetchError, Page, open_fetcher
from engine.hosted.page_text import PageText, text_of_page
from engine.hosted.web_results import WebResult, results_of
from engine.settings import Settings

log = logging.getLogger(__name__)

_MAX_PAGES: Final = 16
_KEEP_S: Final = 300.0  # opening a page, finding in it, reading on: that is one visit
_MAX_TEXT_CHARS: Final = 1_000_000
_MAX_READERS: Final = 2  # threads that read pages; one more would only take the loop's time
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


class Web:
    """See the module."""

    def __init__(self, search_url: str, provider: Fetcher, pages: Fetcher) -> None:
        """search_url: with `{query}` in it. provider: fetches that; pages: all else."""
        self._search_url = search_url
        self._provider = provider
        self._fetcher = pages
        self._readers = trio.CapacityLimiter(_MAX_READERS)
        self._pages: dict[str, tuple[float, str, PageText]] = {}  # the oldest first: time, last URL, text

    async def search(self, query: str) -> list[WebResult] | str:
        """The provider's results, or its answer's text where that is no list of results. Raises FetchError."""
        page = await self._ask_provider(query)
        found = results_of(page)
        if found is not None:
            return found
        text = await self._text_of(page)
        if text is None:
            raise FetchError("The search provider's answer has no text.")
        return text.text

    async def _ask_provider(self, query: str) -> Page:
        try:
            return await self._provider.fetch(self._search_url.replace("{query}", quote(query, safe="")))
        except FetchError as error:  # says the URL, which may hold the operator's key
            log.warning("the search provider failed: %r", error.__cause__ or type(error))
            raise FetchError("The search provider cannot be asked at the moment.") from None

    async def open(self, url: str) -> tuple[str, PageText]:
        """A page's last URL, after redirects, and its text. Raises FetchError."""
        now = trio.current_time()
        kept = self._pages.get(url)
        if kept is not None and now - kept[0] < _KEEP_S:
            return kept[1:]
        page = await self._fetcher.fetch(url)
        text = await self._text_of(page)
        if text is None:
            raise FetchError(f"{url[:200]} is no text but {page.content_type or 'something else'}.")
        text = PageText(text.title, text.text[:_MAX_TEXT_CHARS])
        self._pages.pop(url, None)
        while len(self._pages) >= _MAX_PAGES:
            del self._pages[next(iter(self._pages))]
        self._pages[url] = (now, page.url, text)
        return page.url, text

    async def _text_of(self, page: Page) -> PageText | None:
        read = partial(text_of_page, page.body, page.content_type, page.charset, page.url)
        return await trio.to_thread.run_sync(read, limiter=self._readers)


def open_web(settings: Settings) -> Web:
    """The web as the settings let models see it. The provider may be anywhere: the operator names it."""
    host = httpx2.URL(settings.web_search_url.replace("{query}", "q")).host
    provider = open_fetcher(settings, address_rules([host], _ANYWHERE))
    return Web(settings.web_search_url, provider, open_fetcher(settings))
