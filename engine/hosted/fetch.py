"""Fetches a page for a model within limits of time, size, redirects and addresses.

The size is that of the page as it is read: of a compressed one no more is unpacked than that, so what a small answer
would grow to makes no difference.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Final

import httpx2
import msgspec
import trio

from engine.hosted.addresses import AddressRules, address_rules
from engine.hosted.guarded import GuardedTransport, Refused
from engine.settings import Settings

_CHUNK: Final = 65_536
_GZIP_OR_ZLIB: Final = 47  # zlib's window bits: both headers are recognised
_HEADERS: Final = {
    "User-Agent": "longloop",
    "Accept-Encoding": "gzip, deflate",
    "Accept": "text/html, text/*, */*;q=0.5",
}


class FetchError(Exception):
    """A page that cannot be had; the message says why and is for the model."""


class Page(msgspec.Struct, frozen=True):
    """What was fetched. url: the last one, after redirects. content_type: without parameters, lower case."""

    url: str
    content_type: str
    charset: str | None
    body: bytes


class FetchLimits(msgspec.Struct, frozen=True):
    """See the settings `fetch_…`. max_bytes: of the unpacked page."""

    timeout_s: float = 20.0
    max_bytes: int = 5 << 20
    max_redirects: int = 5


class Fetcher:
    """Fetches pages; for any number of runs at the same time. Keeps no connection."""

    def __init__(
        self,
        rules: AddressRules,
        limits: FetchLimits,
        new_transport: Callable[[AddressRules], httpx2.AsyncBaseTransport] | None = None,
    ) -> None:
        """new_transport: one that follows the rules; a GuardedTransport unless a test brings its own."""
        self._rules = rules
        self._limits = limits
        tls = httpx2.create_ssl_context()  # read once: it takes longer than a small fetch
        inner = partial(httpx2.AsyncHTTPTransport, verify=tls, trust_env=False)
        self._new_transport = new_transport or partial(GuardedTransport, new_inner=inner)

    async def fetch(self, url: str) -> Page:
        """The page at `url`. Raises FetchError."""
        with trio.move_on_after(self._limits.timeout_s):
            try:
                async with self._new_client() as client:
                    return await self._follow(client, url)
            except httpx2.InvalidURL as error:
                raise FetchError(f"{_short(url)} is not a URL.") from error
            except Refused as error:
                raise FetchError(str(error)) from error
            except (httpx2.HTTPError, OSError) as error:
                raise FetchError(f"{_short(url)} could not be fetched ({_why(error)}).") from error
        raise FetchError(f"{_short(url)} was not there within {self._limits.timeout_s:g} s.")

    def _new_client(self) -> httpx2.AsyncClient:
        transport = self._new_transport(self._rules)
        # Time is counted for the whole page, which no slow trickle of bytes can stretch.
        return httpx2.AsyncClient(transport=transport, timeout=None, headers=_HEADERS, trust_env=False)

    async def _follow(self, client: httpx2.AsyncClient, url: str) -> Page:
        for _ in range(self._limits.max_redirects + 1):
            async with client.stream("GET", url) as answer:
                if answer.has_redirect_location:
                    url = str(answer.url.join(answer.headers["location"]))
                    continue
                if not answer.is_success:
                    raise FetchError(f"{_short(url)} answered {answer.status_code}.")
                return await self._read(answer)
        raise FetchError(f"{_short(url)} redirects more than {self._limits.max_redirects} times.")

    async def _read(self, answer: httpx2.Response) -> Page:
        body = bytearray()
        unpack = _unpacking(answer)
        async with aclosing(answer.aiter_raw(_CHUNK)) as raws:
            async for raw in raws:
                for piece in unpack(raw):
                    body += piece
                    if len(body) > self._limits.max_bytes:
                        raise FetchError(f"{_short(answer.url)} is larger than {self._limits.max_bytes} bytes.")
        content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Page(str(answer.url), content_type, answer.charset_encoding, bytes(body))


def open_fetcher(settings: Settings, rules: AddressRules | None = None) -> Fetcher:
    """The fetcher that the settings ask for. rules: others than theirs."""
    limits = FetchLimits(settings.fetch_timeout_s, settings.max_fetch_bytes, settings.max_fetch_redirects)
    if rules is None:
        rules = address_rules(settings.fetch_hosts, settings.fetch_networks)
    return Fetcher(rules, limits)


def _unpacking(answer: httpx2.Response) -> Callable[[bytes], Iterator[bytes]]:
    """What turns received bytes into pieces that are never larger than `_CHUNK`, however well they were packed."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return _as_it_is
    if encoding in ("gzip", "x-gzip", "deflate"):
        return partial(_inflate, zlib.decompressobj(_GZIP_OR_ZLIB))
    raise FetchError(f"{_short(answer.url)} is packed as {encoding[:50]}, which was not asked for.")


def _as_it_is(raw: bytes) -> Iterator[bytes]:
    yield raw


def _inflate(packed: "zlib._Decompress", raw: bytes) -> Iterator[bytes]:
    while raw and not packed.eof:
        try:
            yield packed.decompress(raw, _CHUNK)
        except zlib.error as error:
            raise FetchError("The page is not packed as it says.") from error
        raw = packed.unconsumed_tail


def _short(url: object) -> str:
    return str(url)[:200]


def _why(error: BaseException) -> str:
    """What the error says, or the first of those behind it that says something."""
    behind: BaseException | None = error
    while behind is not None and not str(behind):
        behind = behind.__cause__ or behind.__context__
    return str(behind or type(error).__name__)
