"""kv_cache.py: the budget's order of giving way, and which prefix is taken over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.kv_cache import KVCache, Use, common_prefix
from engine.tokens import TokenLog


def log_of(*ids: int) -> TokenLog:
    tokens = TokenLog()
    tokens.give(ids)
    return tokens


def hold(cache: KVCache, seq: int, num_tokens: int, use: Use) -> None:
    cache.put(seq, log_of(*range(num_tokens)), num_tokens, use)


def test_what_was_put_is_held():
    cache = KVCache(100)
    hold(cache, 1, 30, Use.RUNNING)
    hold(cache, 2, 20, Use.PAUSED)
    assert (cache.held(1), cache.held(2), cache.held(3), cache.num_tokens) == (30, 20, 0, 50)


def test_putting_again_replaces():
    cache = KVCache(100)
    hold(cache, 1, 30, Use.RUNNING)
    hold(cache, 1, 31, Use.RUNNING)
    assert cache.num_tokens == 31


def test_nothing_gives_way_within_the_budget():
    cache = KVCache(50)
    hold(cache, 1, 50, Use.RETIRED)
    assert cache.evict() == []


def test_retired_ones_go_first_then_those_paused_for_longest_and_running_ones_never():
    cache = KVCache(0)
    hold(cache, 1, 10, Use.RUNNING)
    hold(cache, 2, 10, Use.PAUSED)
    hold(cache, 3, 10, Use.PAUSED)
    hold(cache, 4, 10, Use.RETIRED)
    cache.mark(2, Use.PAUSED)  # again: it is now the one paused last
    assert cache.evict() == [4, 3, 2]
    assert cache.num_tokens == 10


def test_no_more_gives_way_than_must():
    cache = KVCache(100)
    for seq in range(4):
        hold(cache, seq, 30, Use.RETIRED)
    assert cache.evict() == [0]


def test_a_smaller_budget_tells_at_the_next_eviction():
    cache = KVCache(100)
    hold(cache, 1, 60, Use.PAUSED)
    cache.set_budget(50)
    assert cache.evict() == [1]


def test_of_another_segment_the_common_beginning_is_held():
    cache, tokens = KVCache(100), log_of(*range(30))
    cache.put(1, tokens, 25, Use.PAUSED)
    tokens.start_segment()
    assert cache.held(1) == 0
    tokens.give([*range(20), 77])
    assert cache.held(1) == 20
    tokens.give(range(40))
    assert (cache.held(1), cache.num_tokens) == (20, 25)


@pytest.mark.parametrize(
    ("came", "ahead", "held"),
    [([], [], 10), ([], [50, 51, 52, 53], 13), ([50, 51], [], 12), ([50, 51], [52, 9], 13), ([9], [50], 10)],
)
def test_of_what_was_given_ahead_that_is_held_which_came_true(came, ahead, held):
    cache, tokens = KVCache(100), log_of(*range(10))
    cache.put(1, tokens, 10, Use.PAUSED, [50, 51, 52])
    assert cache.num_tokens == 13
    tokens.give(came)
    assert cache.held(1, ahead) == held
    cache.put(1, tokens, len(tokens), Use.RUNNING)
    assert cache.num_tokens == len(tokens)


def test_what_the_worker_has_of_another_segment_can_be_taken_over():
    cache, tokens = KVCache(100), log_of(*range(30))
    cache.put(1, tokens, 25, Use.PAUSED)
    tokens.start_segment()
    tokens.give([7])
    assert cache.match(2, log_of(*range(40))) == (1, 25, False)


def test_marking_or_dropping_what_is_not_there_is_no_error():
    cache = KVCache(100)
    cache.mark(1, Use.PAUSED)
    cache.drop(1)
    assert cache.num_tokens == 0


def test_a_dead_worker_holds_nothing():
    cache = KVCache(100)
    hold(cache, 1, 30, Use.RUNNING)
    cache.clear()
    assert (cache.held(1), cache.num_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("use", "num_held", "num_wanted", "expected"),
    [
        (Use.RETIRED, 100, 200, (1, 100, True)),  # all of it
        (Use.RETIRED, 100, 60, (1, 58, True)),  # one must be left to sample from
        (Use.RETIRED, 1000, 60, (1, 58, False)),  # the rest may be of use to others
        (Use.PAUSED, 100, 200, (1, 100, False)),
        (Use.RUNNING, 100, 200, (1, 100, False)),
        (Use.RETIRED, 15, 200, None),  # too little
        (Use.RETIRED, 100, 16, None),
    ],
)
def test_a_prefix_is_taken_over(use, num_held, num_wanted, expected):
    cache = KVCache(10_000)
    hold(cache, 1, num_held, use)
    assert cache.match(2, log_of(*range(num_wanted))) == expected


def test_the_longest_prefix_wins():
    cache = KVCache(10_000)
    for seq, shared in [(1, 20), (2, 50), (3, 30)]:
        cache.put(seq, log_of(*range(shared), 9999, *range(40)), shared + 41, Use.PAUSED)
    assert cache.match(4, log_of(*range(100))) == (2, 50, False)


def test_only_what_the_worker_has_counts():
    cache, tokens = KVCache(10_000), log_of(*range(100))
    cache.put(1, tokens, 40, Use.PAUSED)
    assert cache.match(2, log_of(*range(100))) == (1, 40, False)


def test_a_sequence_does_not_match_itself():
    cache = KVCache(10_000)
    hold(cache, 1, 100, Use.PAUSED)
    assert cache.match(1, log_of(*range(100))) is None


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_prefix_is_what_a_loop_would_find(shared, left, right):
    left, right = shared + left, shared + right
    expected = next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    assert common_prefix(left, right) == expected
