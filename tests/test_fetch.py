"""hosted/fetch.py and hosted/guarded.py: pages within limits, from permitted addresses alone.

The attacks here end in a FetchError with a sentence for the model, and cost the server no memory worth naming.
"""

import gzip
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import pytest
import trio
import trio.testing

from engine.compare.tls import make_contexts, start_terminator
from engine.hosted.addresses import AddressRules, address_rules
from engine.hosted.fetch import Fetcher, FetchError, FetchLimits, Page, open_fetcher
from engine.hosted.guarded import GuardedTransport, Refused, resolve
from engine.settings import Settings
from tests.remote_peer import Reply, open_peer

PUBLIC = "93.184.216.34"
Answer = Callable[[httpx2.Request], httpx2.Response]


class Zone:
    """A resolver with a table; a name's answers are given one after another, the last for ever."""

    def __init__(self, **names: list[str]) -> None:
        self._names = names
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._names.get(host.partition(".")[0])
        if answers is None:
            raise socket.gaierror("no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer.split() if answer else []


class Web:
    """The inner transport: answers from a function and notes where a connection would have gone."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connected: list[tuple[str, str, str]] = []  # address, Host header, name for TLS

    def new(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self._handle)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.connected.append((request.url.host, request.headers["host"], request.extensions["sni_hostname"]))
        return self._answer(request)


class Stream(httpx2.AsyncByteStream):
    """A body that is made as it is read."""

    def __init__(self, pieces: Iterator[bytes], wait_s: float = 0) -> None:
        self._pieces = pieces
        self._wait_s = wait_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await trio.sleep(self._wait_s)
            yield piece


def fetcher(web: Web, zone: Zone, limits: FetchLimits = FetchLimits(), rules: AddressRules = AddressRules()) -> Fetcher:  # noqa: B008 - frozen
    return Fetcher(rules, limits, lambda rules: GuardedTransport(rules, resolve=zone, new_inner=web.new))


def page(body: str) -> httpx2.Response:
    headers = {"content-type": "text/plain; charset=utf-8"}
    return httpx2.Response(200, headers=headers, stream=Stream(iter([body.encode()])))


def text(body: str = "hello") -> Answer:
    return lambda request: page(body)


def streamed(pieces: Iterator[bytes], wait_s: float = 0, **headers: str) -> Answer:
    return lambda request: httpx2.Response(200, headers=headers, stream=Stream(pieces, wait_s))


def redirect(**targets: str) -> Answer:
    """By the path's last part, to a URL; whatever is not there is a page."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        target = targets.get(request.url.path.rpartition("/")[2])
        return httpx2.Response(302, headers={"location": target}) if target else page("end")

    return answer


async def test_a_page_comes_with_its_type_and_last_url() -> None:
    web = Web(redirect(a="/b", b="https://other.test/c?x=1"))
    found = await fetcher(web, Zone(site=[PUBLIC], other=["2606:2800::1"])).fetch("http://site.test:8080/a")
    assert found == Page("https://other.test/c?x=1", "text/plain", "utf-8", b"end")
    assert web.connected == [
        (PUBLIC, "site.test:8080", "site.test"),
        (PUBLIC, "site.test:8080", "site.test"),
        ("2606:2800::1", "other.test", "other.test"),
    ]


@pytest.mark.parametrize("packed", [gzip.compress(b"hello " * 9999), zlib.compress(b"hello " * 9999)])
async def test_packed_pages_are_unpacked(packed: bytes) -> None:
    encoding = {"content-encoding": "gzip" if packed.startswith(b"\x1f\x8b") else "deflate"}
    pieces = [packed[place : place + 7] for place in range(0, len(packed), 7)]
    found = await fetcher(Web(streamed(iter(pieces), **encoding)), Zone(site=[PUBLIC])).fetch("http://site.test/")
    assert found.body == b"hello " * 9999


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://metadata.test/latest", "an address that may not be fetched"),
        ("http://mixed.test/", "an address that may not be fetched"),
        ("http://127.0.0.1:8765/v1/models", "an address that may not be fetched"),
        ("http://[::1]/", "an address that may not be fetched"),
        ("http://nowhere.test/", "has no address"),
        ("http://empty.test/", "has no address"),
        ("file:///etc/passwd", "Only http and https"),
        ("ftp://site.test/", "Only http and https"),
        ("site.test/page", "Only http and https"),
        ("http://site.test/\x00", "is not a URL"),
        ("", "Only http and https"),
    ],
)
async def test_where_nothing_may_be_fetched_no_connection_is_made(url: str, why: str) -> None:
    web = Web(text())
    zone = Zone(
        metadata=["169.254.169.254"], mixed=[f"{PUBLIC} 10.0.0.1"], empty=[""], site=[PUBLIC],
        **{"127": ["127.0.0.1"], "::1": ["::1"]},
    )  # fmt: skip
    with pytest.raises(FetchError, match=why):
        await fetcher(web, zone).fetch(url)
    assert web.connected == []


async def test_a_redirect_to_a_metadata_address_is_refused() -> None:  # P142
    web = Web(redirect(a="http://169.254.169.254/latest/meta-data/iam", b="http://metadata.test/"))
    for path in "ab":
        with pytest.raises(FetchError, match="may not be fetched"):
            zone = Zone(site=[PUBLIC], metadata=["169.254.169.254"], **{"169": ["169.254.169.254"]})
            await fetcher(web, zone).fetch(f"http://site.test/{path}")
    assert [address for address, *_ in web.connected] == [PUBLIC, PUBLIC]


async def test_a_name_that_changes_its_answer_is_looked_up_once_for_each_request() -> None:
    web, zone = Web(text()), Zone(rebinding=[PUBLIC, "127.0.0.1"])
    await fetcher(web, zone).fetch("http://rebinding.test/")
    assert (zone.asked, web.connected[0][0]) == (["rebinding.test"], PUBLIC)
    with pytest.raises(FetchError, match="may not be fetched"):
        await fetcher(web, zone).fetch("http://rebinding.test/")
    assert len(web.connected) == 1


async def test_a_name_that_changes_its_answer_between_redirects_is_refused() -> None:
    web, zone = Web(redirect(a="/b")), Zone(rebinding=[PUBLIC, "127.0.0.1"])
    with pytest.raises(FetchError, match="may not be fetched"):
        await fetcher(web, zone).fetch("http://rebinding.test/a")
    assert len(web.connected) == 1


async def test_the_allow_list_holds_for_redirects_too() -> None:
    web, zone = Web(redirect(a="http://other.test/")), Zone(site=[PUBLIC], other=[PUBLIC])
    with pytest.raises(FetchError, match=r"other\.test is not one of the hosts"):
        await fetcher(web, zone, rules=address_rules(["site.test"], [])).fetch("http://site.test/a")
    assert zone.asked == ["site.test"]


async def test_endless_redirects_end() -> None:  # P143
    web = Web(redirect(a="/a"))
    with pytest.raises(FetchError, match="redirects more than 5 times"):
        await fetcher(web, Zone(site=[PUBLIC])).fetch("http://site.test/a")
    assert len(web.connected) == 6


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_decompression_bomb_is_unpacked_up_to_the_limit_only(encoding: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush()  # 64 MiB in 64 kB
    web = Web(streamed(iter([bomb]), **{"content-encoding": encoding}))
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match="larger than 1000000 bytes"):
            await fetcher(web, Zone(site=[PUBLIC]), FetchLimits(max_bytes=1_000_000)).fetch("http://site.test/")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


async def test_an_endless_page_is_read_up_to_the_limit_only() -> None:  # P143
    pieces = iter(lambda: bytes(50_000), None)
    with pytest.raises(FetchError, match="larger than 1000000 bytes"):
        await fetcher(Web(streamed(pieces)), Zone(site=[PUBLIC]), FetchLimits(max_bytes=1_000_000)).fetch(
            "http://site.test/"
        )
    assert next(pieces)


async def test_a_trickle_of_bytes_ends_with_the_time(autojump_clock: trio.testing.MockClock) -> None:
    trickle = streamed(iter(lambda: b"x", None), wait_s=1)
    with pytest.raises(FetchError, match="not there within 20 s"):
        await fetcher(Web(trickle), Zone(site=[PUBLIC])).fetch("http://site.test/")
    assert trio.current_time() == pytest.approx(20)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda request: httpx2.Response(404), "answered 404"),
        (streamed(iter([b"?"]), **{"content-encoding": "br"}), "packed as br, which was not asked for"),
        (streamed(iter([b"no gzip at all"]), **{"content-encoding": "gzip"}), "not packed as it says"),
    ],
)
async def test_an_answer_that_is_no_page_is_an_error(answer: Answer, why: str) -> None:
    with pytest.raises(FetchError, match=why):
        await fetcher(Web(answer), Zone(site=[PUBLIC])).fetch("http://site.test/")


async def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host != PUBLIC:
            raise httpx2.ConnectError("no route")
        return page("here")

    web = Web(answer)
    assert (await fetcher(web, Zone(site=[f"2606:2800::1 {PUBLIC}"])).fetch("http://site.test/")).body == b"here"
    assert [address for address, *_ in web.connected] == ["2606:2800::1", PUBLIC]
    with pytest.raises(FetchError, match="no route"):
        await fetcher(web, Zone(site=["2606:2800::1"])).fetch("http://site.test/")


async def test_hosts_of_one_address_share_no_connection() -> None:
    made: list[httpx2.MockTransport] = []

    def new() -> httpx2.MockTransport:
        made.append(Web(text()).new())
        return made[-1]

    transport = GuardedTransport(AddressRules(), resolve=Zone(a=[PUBLIC], b=[PUBLIC]), new_inner=new)
    async with httpx2.AsyncClient(transport=transport) as client:
        for url in ("https://a.test/", "https://b.test/", "https://a.test/2"):
            await client.get(url)
    assert len(made) == 2


@asynccontextmanager
async def loopback() -> AsyncIterator[str]:
    """A real server's URL, and no name but its address."""
    reply = Reply([b"over ", b"a socket"], headers={"content-type": "Text/HTML; charset=latin-1"})
    async with open_peer(lambda asked: reply) as peer:
        yield peer.url


async def test_over_a_socket_where_the_network_is_named() -> None:
    async with loopback() as url:
        with pytest.raises(FetchError, match="may not be fetched"):
            await open_fetcher(Settings()).fetch(url)
        page = await open_fetcher(Settings(fetch_networks=["127.0.0.0/8"])).fetch(url)
        assert (page.content_type, page.charset, page.body) == ("text/html", "latin-1", b"over a socket")


async def test_limits_are_those_of_the_settings() -> None:
    settings = Settings(
        fetch_networks=["127.0.0.0/8"],
        fetch_hosts=["127.0.0.1"],
        max_fetch_bytes=5,
        fetch_timeout_s=10,
        max_fetch_redirects=1,
    )
    async with loopback() as url:
        with pytest.raises(FetchError, match="larger than 5 bytes"):
            await open_fetcher(settings).fetch(url)
        with pytest.raises(FetchError, match="not one of the hosts"):
            await open_fetcher(settings).fetch("http://localhost/")


async def test_tls_asks_for_the_certificate_of_the_name_and_not_of_the_address() -> None:
    contexts = make_contexts()  # for 127.0.0.1

    def new_transport(rules: AddressRules) -> GuardedTransport:
        zone = Zone(site=["127.0.0.1"], **{"127": ["127.0.0.1"]})
        inner = partial(httpx2.AsyncHTTPTransport, verify=contexts.client, trust_env=False)
        return GuardedTransport(rules, resolve=zone, new_inner=inner)

    fetcher = Fetcher(address_rules([], ["127.0.0.0/8"]), FetchLimits(), new_transport)
    async with open_peer(lambda asked: Reply([b"safe"])) as peer, trio.open_nursery() as nursery:
        port = await start_terminator(nursery, peer.port, contexts.server)
        assert (await fetcher.fetch(f"https://127.0.0.1:{port}/")).body == b"safe"
        with pytest.raises(FetchError, match="certificate"):
            await fetcher.fetch(f"https://site.test:{port}/")
        nursery.cancel_scope.cancel()


async def test_numbers_that_mean_loopback_are_seen_through() -> None:
    assert await resolve("2130706433", 80) == ["127.0.0.1"]
    transport = GuardedTransport(AddressRules())
    async with httpx2.AsyncClient(transport=transport) as client:
        with pytest.raises(Refused):
            await client.get("http://0x7f000001/")
