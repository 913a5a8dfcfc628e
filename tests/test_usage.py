"""usage.py: counts agree with each other, sums agree with their parts."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.usage import Timing, Usage, count_usage, rounded

USAGES = st.builds(
    lambda cached, more, reasoning, text: count_usage(
        cached + more, reasoning + text, cached_tokens=cached, reasoning_tokens=reasoning
    ),
    *[st.integers(0, 10**6)] * 4,
)
TIMES = st.floats(0, 1e9)
TIMINGS = st.builds(Timing, queue_ms=TIMES, prefill_ms=TIMES, client_wait_ms=TIMES, tokens_new=st.integers(0, 10**6))


def test_shape_has_both_detail_objects_even_when_nothing_was_counted() -> None:  # P111
    # Codex refuses a usage object whose details lack a key.
    assert msgspec.json.decode(msgspec.json.encode(Usage())) == {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }


@given(USAGES, USAGES)
def test_sum_is_the_sum_of_every_count(a: Usage, b: Usage) -> None:  # P111
    both = a + b
    assert both.total_tokens == both.input_tokens + both.output_tokens == a.total_tokens + b.total_tokens
    assert both.input_tokens == a.input_tokens + b.input_tokens
    details = both.input_tokens_details
    assert details.cached_tokens == a.input_tokens_details.cached_tokens + b.input_tokens_details.cached_tokens
    assert details.cached_tokens + details.cache_write_tokens == both.input_tokens
    reasoning = a.output_tokens_details.reasoning_tokens + b.output_tokens_details.reasoning_tokens
    assert both.output_tokens_details.reasoning_tokens == reasoning
    assert a + Usage() == a


@given(TIMINGS, TIMINGS)
def test_times_add_field_by_field(a: Timing, b: Timing) -> None:
    both = a + b
    for name in Timing.__struct_fields__:
        assert getattr(both, name) == getattr(a, name) + getattr(b, name)
    assert a + Timing() == a


def test_rounded_keeps_microseconds_and_counts() -> None:
    timing = rounded(Timing(queue_ms=1.23456, sampling_ms=2, tokens_new=7))
    assert timing == Timing(queue_ms=1.235, sampling_ms=2, tokens_new=7)
    assert isinstance(timing.tokens_new, int)
