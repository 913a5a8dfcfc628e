"""remote/growing.py, encoding.py, sse.py, errors.py, rate_limits.py: the pure parts of the way to a service."""

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import BrokenStream, UpstreamError, error_chunk, is_about_encoding, refused, wait_of
from engine.backends.remote.growing import GrowingBody, combined_crc
from engine.backends.remote.rate_limits import rate_limits_of
from engine.backends.remote.sse import EventReader

ENCODINGS = [Encoding(msgpack=msgpack, gzip=packed) for msgpack in (False, True) for packed in (False, True)]


def decoded(body: bytes, encoding: Encoding) -> Any:
    data = gzip.decompress(body) if encoding.gzip else body
    return msgspec.msgpack.decode(data) if encoding.msgpack else json.loads(data)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(rounds=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=40), max_size=6), limit=st.integers(0, 1 << 20))
def test_a_body_that_grew_says_the_same_as_one_made_at_once(
    encoding: Encoding, rounds: list[list[int]], limit: int
) -> None:
    grown, ids = GrowingBody("prompt", encoding), list[int]()
    for number, new in enumerate(rounds):
        grown.extend(new)
        ids += new
        fields = {"model": "m", "max_tokens": limit + number, "stream": True}
        assert decoded(grown.body(fields), encoding) == fields | {"prompt": ids}
        assert len(grown) == len(ids)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536, 200_000])
def test_any_length_of_array_and_number_of_fields_is_written_rightly(encoding: Encoding, count: int) -> None:
    grown = GrowingBody("prompt", encoding)
    grown.extend(list(range(count)))
    for num_fields in (0, 1, 14, 15, 16, 20):
        fields = {f"field{number}": number for number in range(num_fields)}
        assert decoded(grown.body(fields), encoding) == fields | {"prompt": list(range(count))}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_elements_may_be_anything_and_a_copy_grows_by_itself(encoding: Encoding) -> None:
    grown = GrowingBody("messages", encoding)
    grown.extend([{"role": "user", "content": "ä]}"}])
    twin = grown.copy()
    twin.extend([{"role": "assistant", "content": None}])
    assert [len(decoded(one.body({}), encoding)["messages"]) for one in (grown, twin)] == [1, 2]


@pytest.mark.parametrize("msgpack", [False, True])
def test_what_was_said_before_is_referred_to(msgpack: bool) -> None:
    """However it is cut: an element like an earlier one takes a few bytes, in a fork too."""
    grown = GrowingBody("messages", Encoding(msgpack=msgpack, gzip=True))
    element = {"role": "tool", "content": "".join(map(chr, range(32, 127))) * 3}
    grown.extend([element])
    one = len(grown.body({}))
    for body in (grown.copy(), grown):
        body.extend([element])
        assert len(body.body({})) < one + 30
        assert decoded(body.body({}), body.encoding)["messages"] == [element] * 2


def test_what_was_there_is_not_written_again() -> None:
    grown = GrowingBody("prompt", Encoding(gzip=True))
    grown.extend(list(range(50_000)))
    before = grown.body({})
    grown.extend([1, 2, 3])
    after = grown.body({})
    assert after.startswith(before[:50_000])
    assert len(after) - len(before) < 40


@given(first=st.binary(max_size=50), second=st.binary(max_size=300))
def test_checksums_are_put_together(first: bytes, second: bytes) -> None:
    assert combined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_whole_body(encoding: Encoding) -> None:
    assert decoded(encoding.encode({"a": ["ä"]}), encoding) == {"a": ["ä"]}


def test_the_steps_down_end_with_plain_json() -> None:
    assert Encoding(msgpack=True, gzip=True).simpler() == Encoding(gzip=True)
    assert Encoding(msgpack=True).simpler() == PLAIN
    assert Encoding(gzip=True).simpler() == PLAIN
    assert PLAIN.simpler() is None


# --- events


STREAM = b': hello\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:2\n\ndata: 3\ndata: 4\n\nid: 5\n\n\ndata: cut'


def test_every_cut_of_a_stream_gives_the_same_events() -> None:
    for first in range(len(STREAM)):
        for second in range(first, len(STREAM), 7):
            reader = EventReader(1000)
            parts = STREAM[:first], STREAM[first:second], STREAM[second:]
            assert [event for part in parts for event in reader.feed(part)] == [b'{"a": 1}', b"2", b"3\n4"]


def test_an_event_that_is_too_large_breaks_the_stream() -> None:
    for data in (b"data: " + b"x" * 30, b"data: 1234567890\n" * 3):
        with pytest.raises(BrokenStream):
            EventReader(20).feed(data)


# --- errors


def error(message: str = "no", **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message} | fields}).encode()


@pytest.mark.parametrize(
    ("status", "body", "code", "our_status", "is_retryable"),
    [
        (400, error("This model's maximum context length is 8192"), "context_length_exceeded", 400, False),
        (400, error("the request exceeds the available context size"), "context_length_exceeded", 400, False),
        (413, b"", "context_length_exceeded", 400, False),
        (404, error("Model zz does not exist or you do not have access to it"), "model_not_found", 404, False),
        (400, error("bad", code="model_not_found"), "model_not_found", 404, False),
        (402, error("pay"), "insufficient_quota", 429, False),
        (429, error("pay", code="insufficient_quota"), "insufficient_quota", 429, False),
        (429, error("slow down"), "rate_limit_exceeded", 429, True),
        (503, error("x", code="queue_exceeded"), "rate_limit_exceeded", 429, True),
        (500, error("boom"), "server_error", 500, True),
        (408, b"<html>", "server_error", 500, True),
        (401, error("wrong key"), "server_error", 500, False),
        (403, error("no such plan"), "server_error", 500, False),
        (405, error("POST"), "server_error", 500, False),
        (422, error("temperature"), "invalid_prompt", 400, False),
        (302, b"", "server_error", 500, False),
        (400, json.dumps({"detail": "x"}).encode(), "invalid_prompt", 400, False),
        (400, b"[1]", "invalid_prompt", 400, False),
    ],
)
def test_what_a_refusal_means(status: int, body: bytes, code: str, our_status: int, is_retryable: bool) -> None:
    found = refused(status, body, {}, 0)
    assert (found.code, found.status, found.is_retryable) == (code, our_status, is_retryable)
    assert found.upstream_status == status


DETAIL = {"detail": [{"loc": ["body", "top_p"], "msg": "Input should be a number", "type": "x", "input": "secret"}]}


@pytest.mark.parametrize(
    ("status", "body", "code", "said", "param"),
    [
        (400, error("Unsupported value:\n'temperature'", param="temperature"), "invalid_prompt", 0, "temperature"),
        (400, error("bad role", param="messages[1].role"), "invalid_prompt", 0, "input"),
        (400, error("too few", param="max_completion_tokens"), "invalid_prompt", 0, "max_output_tokens"),
        (422, error("no schema", param="response_format.json_schema"), "invalid_prompt", 0, "text.format"),
        (400, error("odd", param="stream_options"), "invalid_prompt", 0, None),
        (400, error("odd", param=7), "invalid_prompt", 0, None),
        (422, json.dumps(DETAIL).encode(), "invalid_prompt", "top_p: Input should be a number", "top_p"),
        (422, json.dumps({"detail": [7]}).encode(), "invalid_prompt", "[7]", None),
        (400, b"<html>proxy at 10.0.0.7</html>", "invalid_prompt", None, None),
        (400, error("maximum context length is 8192"), "context_length_exceeded", 0, None),
        (400, error("maximum context length is 8", param="messages"), "context_length_exceeded", 0, "input"),
        (413, error("payload too large"), "context_length_exceeded", 0, None),
        (404, error("Model zz does not exist", param="model"), "model_not_found", 0, "model"),
        (404, b"<html>10.0.0.7</html>", "model_not_found", None, None),
    ],
)
def test_what_the_client_can_mend_is_said_in_the_services_words(
    status: int, body: bytes, code: str, said: Any, param: str | None
) -> None:
    """said: 0 for the error's message, None for nothing of it."""
    found = refused(status, body, {}, 0).body()
    assert (found["type"], found["code"], found["param"]) == ("invalid_request_error", code, param)
    words = " ".join(json.loads(body)["error"]["message"].split()) if said == 0 else said
    assert found["message"].partition(" It says: ")[2] == (words or "")
    assert "10.0.0.7" not in found["message"] and "secret" not in found["message"]


@pytest.mark.parametrize("status", [401, 402, 403, 405, 408, 429, 500, 503])
def test_other_words_of_the_service_are_for_the_log(status: int) -> None:
    found = refused(status, error("disk /dev/sda1 of host 10.0.0.7 is full", param="temperature"), {}, 0)
    assert "10.0.0.7" in found.detail
    assert "10.0.0.7" not in json.dumps(found.body())
    assert found.param is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key csk-12345678 is wrong", "key *** is wrong"),
        ("cut: csk-12345678", "cut: ***"),
        ("cut: csk-1234567", "cut: ***"),
        ("cut: csk-", "cut: ***"),
        ("cut: csk", "cut: csk"),
    ],
)
def test_a_secret_is_hidden_also_where_it_is_cut(text: str, shown: str) -> None:
    error = UpstreamError(text, detail=text)
    error.hide("csk-12345678")
    assert (error.message, error.detail, str(error)) == (shown, shown, shown)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "40", "retry-after": "1"}, 0.04),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after-ms": "nan", "retry-after": "3"}, 3),
        ({"retry-after": f"Mon, {'9' * 30} Jan 2020 00:00:00 GMT"}, None),
    ],
)
def test_the_wait_that_a_service_names(headers: dict[str, str], wait_s: float | None) -> None:
    assert wait_of(headers, 10) == wait_s


def test_the_wait_is_in_the_message() -> None:
    assert "try again in 11.054s" in refused(429, b"", {"retry-after": "11.054"}, 0).message
    assert "try again in 1000000s" in refused(429, b"", {"retry-after": "1e6"}, 0).message


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        ({"choices": []}, None),
        ({"error": {"message": "x", "code": 429, "type": "rate"}}, "rate_limit_exceeded"),
        ({"error": {"message": "x", "code": "queue_exceeded"}, "status_code": 503}, "rate_limit_exceeded"),
        ({"error": {"message": "prompt exceeds the context length"}, "status_code": 400}, "context_length_exceeded"),
        ({"error": "boom"}, "server_error"),
        ({"error": {"message": "the maximum context length is 5"}}, "context_length_exceeded"),
        ({"object": "error", "message": "boom", "code": 500}, "server_error"),
    ],
)
def test_an_error_in_a_stream(chunk: dict[str, Any], code: str | None) -> None:
    found = error_chunk(chunk)
    assert (found.code if found else None) == code


@pytest.mark.parametrize(
    "error", ["boom", {"message": "boom", "type": "invalid_request_error", "code": "server_error"}]
)
def test_an_error_in_a_stream_that_tells_no_status_is_the_service_s_fault(error: Any) -> None:
    found = error_chunk({"error": error})
    assert found is not None and found.is_retryable


def test_a_refusal_may_be_about_the_encoding() -> None:
    assert is_about_encoding(refused(415, b"", {}, 0), is_proven=True)
    assert is_about_encoding(refused(400, b"", {}, 0), is_proven=False)
    assert not is_about_encoding(refused(400, b"", {}, 0), is_proven=True)
    assert not is_about_encoding(refused(401, b"", {}, 0), is_proven=False)


# --- rate limits


def test_rate_limits_are_read_from_a_head() -> None:
    limits = rate_limits_of({
        "x-ratelimit-limit-requests-day": "1000",
        "X-RateLimit-Remaining-Requests-Day": "900",
        "x-ratelimit-reset-requests-day": "3600.5",
        "x-ratelimit-limit-tokens-minute": "60000",
        "x-ratelimit-remaining-tokens-minute": "0",
        "x-ratelimit-reset-tokens-minute": "1m0.5s",
        "x-ratelimit-limit-tokens": "10",
        "x-ratelimit-limit-what": "many",
        "x-ratelimit-remaining-what": "1",
        "x-ratelimit-limit-nothing": "9",
        "x-ratelimit-remaining-nothing": "nan",
    })  # fmt: skip
    found = [(one.name, one.used_percent, one.window_minutes, one.reset_s) for one in limits]
    assert found == [("tokens-minute", 100.0, 1.0, 60.5), ("requests-day", 10.0, 1440.0, 3600.5)]
    assert rate_limits_of({"x-ratelimit-limit-a": "0", "x-ratelimit-remaining-a": "0"})[0].used_percent == 100.0
    for reset in ("x", "inf", "nan"):
        head = {"x-ratelimit-limit-a": "1", "x-ratelimit-remaining-a": "1", "x-ratelimit-reset-a": reset}
        assert rate_limits_of(head)[0].reset_s is None
