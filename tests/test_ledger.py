"""ledger.py: records, and lines that can be cut or damaged anywhere."""

import string
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ledger import Ended, QuotaExceeded, Record, Segment, Started, decode_lines, encode_line, make_segment
from engine.usage import Timing, count_usage

RUN = Started("resp_1", "local", "toy", 1_000, 500)
USAGE = count_usage(100, 20, cached_tokens=70, reasoning_tokens=5)
SEGMENT = make_segment(RUN, 3, "stop", USAGE, Timing(prefill_ms=1.23456, sampling_ms=7.0, client_wait_ms=2.5), 2.0015)
RECORDS: list[Record] = [RUN, SEGMENT, Ended("resp_1", 3_000, "completed")]

words = st.text(string.printable, max_size=8)
counts = st.integers(0, 2**53)
times = st.floats(0, 1e9)
records = st.one_of(
    st.builds(Started, words, words, words, counts, counts),
    st.builds(Ended, words, counts, words),
    st.builds(
        Segment, words, counts, words, words, counts, st.sampled_from(["stop", "cut"]), *[counts] * 4, *[times] * 4
    ),
)


def test_segment_has_the_run_and_what_it_took() -> None:
    assert Segment("resp_1", 3, "local", "toy", 2001, "stop", 100, 70, 20, 5, 0.0, 1.235, 7.0, 2.5) == SEGMENT


def test_cached_tokens_do_not_count_towards_a_budget() -> None:
    assert SEGMENT.num_computed == 50


@given(st.lists(records))
def test_lines_come_back(written: list[Record]) -> None:
    assert decode_lines(b"".join(map(encode_line, written))) == (written, 0)


@given(st.lists(records, min_size=1))
def test_any_cut_loses_the_record_it_is_in_and_no_other(written: list[Record]) -> None:
    whole, last = b"".join(map(encode_line, written[:-1])), encode_line(written[-1])
    for size in range(len(last)):
        assert decode_lines(whole + last[:size]) == (written[:-1], int(size > 0))


def test_any_damaged_byte_loses_the_record_it_is_in_and_no_other() -> None:
    first, second = encode_line(RECORDS[0]), encode_line(RECORDS[1])
    for place in range(len(first)):
        damaged = bytes([*first[:place], first[place] ^ 1, *first[place + 1 :]])
        kept, num_broken = decode_lines(damaged + second)
        assert kept == [RECORDS[1]] or place == len(first) - 1  # without its break it has joined the next
        assert num_broken == 1


def test_line_of_another_version_is_left_out() -> None:
    line = encode_line(RECORDS[0]).replace(b'"started"', b'"strange"')
    assert decode_lines(line) == ([], 1)


def test_kinds_are_told_apart() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(Record))


def test_quota_error_has_the_apis_form() -> None:
    error = QuotaExceeded("no")
    assert (error.status, error.body()["code"], error.body()["type"]) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    with pytest.raises(QuotaExceeded):
        raise error.at("input")
