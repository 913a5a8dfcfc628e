"""What is asked and what is answered on one HTTP connection, and every refusal."""

import gzip
import re
import zlib
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from engine.errors import RequestError
from engine.server.coding import zstd
from engine.server.exchange import Request
from engine.server.http import Outcome
from engine.settings import Settings
from tests.http_peer import (
    CHUNKED,
    EXPECT,
    GET,
    HANDSHAKE,
    POST,
    SMALL,
    answers,
    ignore_body,
    last_error,
    posting,
    read_all,
    real_routes,
    replies,
    serving,
)

# --- requests and answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [GET, POST, CHUNKED])
async def test_bytes_may_be_split_anywhere(wire: bytes, autojump_clock: MockClock) -> None:
    (expected,) = await answers(wire)
    assert expected[0] == 200
    for cut in range(1, len(wire)):
        async with serving() as client:
            await client.send_all(wire[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await client.send_all(wire[cut:])
            await client.send_eof()
            (reply,) = replies(await read_all(client))
        assert reply[2] == expected[2], f"cut at {cut}"


async def test_one_byte_at_a_time_is_enough(autojump_clock: MockClock) -> None:
    async with serving() as client:
        for byte in POST + GET:
            await client.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        await client.send_eof()
        first, second = replies(await read_all(client))
    assert first[2] == {"path": "/b", "body": "hello"}
    assert second[2] == {"path": "/a", "body": ""}


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    found = await answers(POST + GET + CHUNKED + GET)
    assert [body["path"] for _, _, body in found] == ["/b", "/a", "/b", "/a"]
    assert [body["body"] for _, _, body in found] == ["hello", "", "hello", ""]


async def test_a_body_nobody_reads_is_skipped_and_the_connection_stays(autojump_clock: MockClock) -> None:
    found = await answers(POST + CHUNKED + GET, route=ignore_body)
    assert [status for status, _, _ in found] == [404, 404, 404]
    assert [body["error"]["message"] for _, _, body in found] == ["no /b", "no /b", "no /a"]
    assert all("connection" not in headers for _, headers, _ in found)


async def test_an_answer_says_what_it_is(autojump_clock: MockClock) -> None:
    ((status, headers, body),) = await answers(GET)
    assert (status, body) == (200, {"path": "/a", "body": ""})
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert headers["date"].endswith("GMT")


async def test_head_gets_the_headers_of_get_and_no_body(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(GET.replace(b"GET", b"HEAD") + GET)
        await client.send_eof()
        head, get = replies(await read_all(client), b"HEAD", b"GET")
    assert head[1]["content-length"] == get[1]["content-length"]
    assert (head[2], get[2]["path"]) == (None, "/a")


async def test_an_error_after_a_head_request_has_a_body(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(GET.replace(b"GET", b"HEAD") + b"nonsense\r\n\r\n")
        _, error = replies(await read_all(client), b"HEAD", b"GET")
    assert error[2]["error"]["code"] == "malformed_request"


@pytest.mark.parametrize("ending", [b"Connection: close\r\n\r\n", b"\r\n"])
async def test_the_server_closes_when_the_client_wants_or_speaks_1_0(ending: bytes, autojump_clock: MockClock) -> None:
    version = b"1.1" if b"close" in ending else b"1.0"
    async with serving() as client:
        await client.send_all(b"GET /a HTTP/" + version + b"\r\nHost: localhost\r\n" + ending + GET)
        ((status, headers, _),) = replies(await read_all(client))
    assert (status, headers["connection"]) == (200, "close")


async def test_continue_is_sent_only_when_the_body_is_wanted(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(EXPECT)
        assert bytes(await client.receive_some()).startswith(b"HTTP/1.1 100 ")
        await client.send_all(b"hello" + GET)
        await client.send_eof()
        assert [body["body"] for _, _, body in replies(await read_all(client))] == ["hello", ""]
    async with serving(route=ignore_body) as client:
        await client.send_all(EXPECT)
        ((status, headers, _),) = replies(await read_all(client))
    assert (status, headers["connection"]) == (404, "close")


async def test_a_large_body_arrives_whole(autojump_clock: MockClock) -> None:
    body = b"x" * 300_000
    ((_, _, answer),) = await answers(POST.replace(b"5\r\n\r\nhello", b"300000\r\n\r\n") + body)
    assert answer["body"] == body.decode()


async def test_a_bug_in_a_route_is_logged_and_told_as_a_500(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def broken(request: Request) -> Outcome:
        raise KeyError("secret")

    ((status, headers, body), again) = await answers(POST + GET, route=broken)
    assert (status, again[0], body["error"]["code"]) == (500, 500, "server_error")
    assert "secret" not in body["error"]["message"]
    assert f"request {headers['x-request-id']} failed" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


# --- request ids -----------------------------------------------------------------------------------------------------


async def test_every_answer_has_an_id_of_its_own(autojump_clock: MockClock) -> None:  # P60
    found = await answers(GET + GET + b"nonsense\r\n\r\n")
    ids = {headers["x-request-id"] for _, headers, _ in found}
    assert len(ids) == 3
    assert all(re.fullmatch("req_[0-9a-f]{24}", id_) for id_ in ids)


@pytest.mark.parametrize("given", ["a", "req_1", "1-67891233-abcdef012345678912345678", "x" * 128])
async def test_a_request_id_of_the_client_is_kept(given: str, autojump_clock: MockClock) -> None:  # P60
    wire = GET.replace(b"\r\n\r\n", b"\r\nX-Request-Id: " + given.encode() + b"\r\n\r\n")
    first, second = await answers(wire + GET)
    assert first[1]["x-request-id"] == given
    assert second[1]["x-request-id"] != given


@pytest.mark.parametrize("given", [[""], ["two words"], ["x" * 129], ["\xe4"], ["a;b"], ["a", "a"]])
async def test_a_request_id_that_is_not_fit_to_show_is_replaced(
    given: list[str], autojump_clock: MockClock
) -> None:  # P60
    lines = b"".join(b"X-Request-Id: " + value.encode("latin-1") + b"\r\n" for value in given)
    ((_, headers, _),) = await answers(GET[:-2] + lines + b"\r\n")
    assert headers["x-request-id"].startswith("req_")


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed_request"),  # TLS
        (b"nonsense\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),  # no Host
        (GET.replace(b"\r\n\r\n", b"\r\nHost: b\r\n\r\n"), 400, "malformed_request"),
        (GET.replace(b"\r\n\r\n", b"\r\nbad header\r\n\r\n"), 400, "malformed_request"),
        (POST.replace(b": 5", b": five"), 400, "malformed_request"),
        (POST.replace(b": 5", b": 5, 6"), 400, "malformed_request"),
        (CHUNKED.replace(b"Transfer", b"Content-Length: 5\r\nTransfer"), 400, "malformed_request"),
        (CHUNKED.replace(b"2\r\nhe", b"zz\r\nhe"), 400, "malformed_request"),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), 501, "unsupported_encoding"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported"),
        (GET + b"nonsense\r\n\r\n", 400, "malformed_request"),
    ],
)
async def test_a_broken_request_is_refused_and_ends_the_connection(
    wire: bytes, status: int, code: str, autojump_clock: MockClock
) -> None:
    assert await last_error(wire) == (status, code)


@pytest.mark.parametrize("wire", [GET[:-2], POST[:-1], CHUNKED[:-2]])
async def test_a_request_cut_by_a_half_close_is_400(wire: bytes, autojump_clock: MockClock) -> None:
    ((status, _, _),) = await answers(wire)
    assert status == 400


async def test_refusals_do_not_quote_the_request(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization Bearer sk-secret\r\n\r\n")
        assert b"sk-secret" not in await read_all(client)


def padded(num_bytes: int) -> bytes:
    """A GET whose head is this long."""
    return GET.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * (num_bytes - len(GET) - 5) + b"\r\n\r\n")


async def test_a_head_of_the_limit_passes_and_one_byte_more_does_not(autojump_clock: MockClock) -> None:
    limit = SMALL.max_head_bytes
    assert len(padded(limit)) == limit
    assert (await answers(padded(limit), settings=SMALL))[0][0] == 200
    assert await last_error(padded(limit + 1), SMALL) == (431, "head_too_large")
    assert await last_error(padded(limit + 50)[: limit + 1], SMALL) == (431, "head_too_large")  # not whole yet
    assert await last_error(GET + padded(limit + 1), SMALL) == (431, "head_too_large")


async def test_only_the_head_counts_for_its_limit(autojump_clock: MockClock) -> None:
    found = await answers(GET * 20, settings=SMALL)
    assert [status for status, _, _ in found] == [200] * 20


def chunking(num_bytes: int) -> bytes:
    return CHUNKED.partition(b"2\r\n")[0] + b"1\r\nx\r\n" * num_bytes + b"0\r\n\r\n"


@pytest.mark.parametrize("make", [posting, chunking])
async def test_a_body_of_the_limit_passes_and_one_byte_more_does_not(
    make: Callable[[int], bytes], autojump_clock: MockClock
) -> None:
    limit = SMALL.max_body_bytes
    assert (await answers(make(limit), settings=SMALL))[0][2]["body"] == "x" * limit
    assert await last_error(make(limit + 1), SMALL) == (413, "body_too_large")


async def test_a_declared_body_that_is_too_large_is_refused_without_continue(
    autojump_clock: MockClock,
) -> None:
    assert await last_error(EXPECT.replace(b": 5", b": 21"), SMALL) == (413, "body_too_large")


async def test_a_skipped_body_that_is_too_large_ends_the_connection(autojump_clock: MockClock) -> None:
    found = await answers(posting(21) + GET, settings=SMALL, route=ignore_body)
    assert [status for status, _, _ in found] == [404]


# --- content codings -------------------------------------------------------------------------------------------------


def coded(coding: str, body: bytes) -> bytes:
    """A POST whose body, coded already, is said to be in this coding."""
    head = b"POST /b HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (coding.encode(), len(body)) + body


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("ZSTD", zstd.compress), ("identity", bytes)]
)
async def test_a_route_gets_the_body_decoded(
    coding: str, compress: Callable[[bytes], bytes], autojump_clock: MockClock
) -> None:  # P61
    found = await answers(coded(coding, compress(b"hello")) + GET)
    assert [body["body"] for _, _, body in found] == ["hello", ""]


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
async def test_the_limit_of_a_body_holds_for_what_it_decodes_to(
    compress: Callable[[bytes], bytes], autojump_clock: MockClock
) -> None:  # P61
    coding = "gzip" if compress is gzip.compress else "zstd"
    limit = 100
    settings = Settings(max_body_bytes=limit)
    found = await answers(coded(coding, compress(b"x" * limit)), settings=settings)
    assert found[0][2]["body"] == "x" * limit
    assert await last_error(coded(coding, compress(b"x" * (limit + 1))), settings) == (413, "body_too_large")


async def test_a_bomb_is_refused_while_it_comes(autojump_clock: MockClock) -> None:
    settings = Settings(max_body_bytes=1 << 20)
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < settings.max_body_bytes
    assert await last_error(coded("gzip", bomb), settings) == (413, "body_too_large")


async def test_a_coding_that_is_not_known_is_refused_and_the_connection_stays(autojump_clock: MockClock) -> None:  # P61
    refused, after = await answers(coded("deflate", zlib.compress(b"hello")) + GET)
    assert (refused[0], refused[2]["error"]["code"]) == (415, "unsupported_content_encoding")
    assert refused[1]["accept-encoding"] == "gzip, zstd, identity"
    assert after[0] == 200


@pytest.mark.parametrize(
    "body", [b"hello", gzip.compress(b"hello", mtime=0)[:-1], gzip.compress(b"hello", mtime=0) + b"x"]
)
async def test_a_body_that_is_not_what_it_is_said_to_be_is_400(body: bytes, autojump_clock: MockClock) -> None:  # P61
    status, _, answer = (await answers(coded("gzip", body)))[0]
    assert (status, answer["error"]["code"]) == (400, "malformed_body")


# --- the real routes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (GET, 404),
        (b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 405),
        (b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
        (HANDSHAKE.replace(b"n: 13", b"n: 8"), 426),
        (HANDSHAKE.replace(b"/v1/responses", b"/elsewhere"), 404),
        (HANDSHAKE.replace(b"/v1/responses", b"/v1/responses?lifecycle=loop"), 400),
    ],
)
async def test_the_real_routes_refuse_and_the_connection_stays(
    wire: bytes, status: int, autojump_clock: MockClock
) -> None:
    found = await answers(wire + wire, route=real_routes)
    assert [found_status for found_status, _, _ in found] == [status, status]


# --- errors of the route ---------------------------------------------------------------------------------------------


async def test_a_route_may_refuse_with_any_status(autojump_clock: MockClock) -> None:
    async def overloaded(request: Request) -> Outcome:
        raise RequestError("Too many connections.", status=503, code="slow_down")

    ((status, _, body),) = await answers(GET, route=overloaded)
    assert (status, body["error"]["code"]) == (503, "slow_down")
