"""sampling.py: the draw follows the distribution, repeats itself, and the quick path equals the full one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends import sampling
from engine.backends.sampling import Penalties, Sampler, chance_of, log_prob, uniform


def row(*logits: float) -> sampling.Row:
    return np.array(logits, np.float32)


def wide_row(seed: int, scale: float, size: int = 500) -> sampling.Row:
    return np.random.default_rng(seed).normal(0, scale, size).astype(np.float32)


def test_temperature_zero_is_greedy():
    assert Sampler(temperature=0).draw(row(1, 3, 2), 0) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-9, 1e-6])
def test_next_to_no_temperature_is_greedy_too(temperature):
    assert Sampler(temperature=temperature).draw(row(1, 3, 2, -1e4, -np.inf), 0) == 1
    assert Sampler(temperature=temperature, top_p=1e-300).draw(row(1, 3, 2), 0) == 1


def test_the_same_seed_and_position_draw_the_same():
    logits = wide_row(1, 1.0)
    drawn = [Sampler(seed=7).draw(logits, position) for position in range(50)]
    assert drawn == [Sampler(seed=7).draw(logits, position) for position in range(50)]
    assert len(set(drawn)) > 10


def test_another_seed_draws_differently():
    logits = wide_row(1, 1.0)
    assert [Sampler(seed=1).draw(logits, n) for n in range(20)] != [Sampler(seed=2).draw(logits, n) for n in range(20)]


def test_uniform_is_below_one_and_not_always_the_same():
    values = [uniform(0, position) for position in range(1000)]
    assert all(0 <= value < 1 for value in values)
    assert np.mean(values) == pytest.approx(0.5, abs=0.05)


def test_draws_follow_the_distribution():
    logits = np.log(row(0.5, 0.3, 0.2))
    drawn = [Sampler(seed=3).draw(logits, position) for position in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_temperature_sharpens_the_distribution():
    logits = np.log(row(0.5, 0.3, 0.2))
    drawn = [Sampler(temperature=0.5, seed=3).draw(logits, position) for position in range(4000)]
    squares = np.array([0.25, 0.09, 0.04])
    assert np.bincount(drawn) / 4000 == pytest.approx(squares / squares.sum(), abs=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, {0}), (0.4, {0}), (0.5, {0}), (0.6, {0, 1}), (0.9, {0, 1, 2})])
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p, kept):
    logits = np.log(row(0.5, 0.3, 0.2)) + 4  # logits need not be normalised
    drawn = {Sampler(top_p=top_p, seed=1).draw(logits, position) for position in range(300)}
    assert drawn == kept


@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 4.0]), st.sampled_from([0.3, 0.9, 0.999, 1.0]))
def test_the_head_draws_as_the_full_sort_does(seed, scale, top_p):
    logits, sampler = wide_row(seed, scale), Sampler(top_p=top_p, seed=seed)
    quick = [sampler.draw(logits, position) for position in range(5)]
    ids = np.lexsort((np.arange(500), -logits))
    reached = np.cumsum(np.exp(logits[ids].astype(np.float64) - sampling._log_total(logits)))
    mass = 1.0 if top_p == 1 else reached[np.searchsorted(reached, top_p)]
    full = [ids[np.searchsorted(reached, uniform(seed, n) * mass, side="right")] for n in range(5)]
    assert quick == full


def test_forbidden_ids_never_come():
    logits = wide_row(2, 1.0)
    logits[::2] = -np.inf
    assert all(Sampler(seed=5).draw(logits, position) % 2 == 1 for position in range(200))


def test_nothing_allowed_is_an_error():
    with pytest.raises(ValueError, match="allowed"):
        Sampler().draw(row(-np.inf, -np.inf), 0)


def test_penalties_lower_what_has_been_said():
    penalties = Penalties(Sampler(presence_penalty=1.0, frequency_penalty=0.5))
    penalties.count([0, 2, 2])
    logits = row(5, 5, 5)
    penalties.apply(logits)
    assert logits.tolist() == [3.5, 5, 3]


def test_penalties_of_nothing_change_nothing():
    logits = row(1, 2)
    Penalties(Sampler(presence_penalty=1.0)).apply(logits)
    assert logits.tolist() == [1, 2]


def test_log_prob_is_the_log_of_the_softmax():
    assert log_prob(np.log(row(0.5, 0.3, 0.2)) + 9, 1) == pytest.approx(np.log(0.3), abs=1e-6)


@given(st.integers(0, 10_000), st.integers(0, 499), st.sampled_from([0, 1, 5, 20]))
def test_a_chance_is_what_the_full_softmax_says(seed, token_id, num_top):
    logits = wide_row(seed, 3.0)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    chance = chance_of(logits, token_id, num_top)
    assert chance.logprob == pytest.approx(expected[token_id], abs=1e-5)
    assert [id_ for id_, _ in chance.top] == list(np.argsort(-logits, kind="stable")[:num_top])
    assert [logprob for _, logprob in chance.top] == pytest.approx(np.sort(expected)[::-1][:num_top], abs=1e-5)
