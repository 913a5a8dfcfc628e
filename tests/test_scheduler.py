"""scheduler.py: who takes part in a step, with how much, and how long a step may be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.scheduler import A_LITTLE_MORE, FEWEST, Kind, Pace, Want, plan

SAMPLING, PROMPT, EARLY = Kind.SAMPLING, Kind.PROMPT, Kind.EARLY


def flat(most: float) -> Pace:
    """So many ids a step, whatever lies before them."""
    return Pace(math.inf, most=most, span=math.inf)


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ([], []),
        ([(1, PROMPT, 10)], [(1, 10)]),
        ([(1, PROMPT, 300)], [(1, 100)]),
        ([(1, PROMPT, 150)], [(1, 150)]),  # a little more than fits
        ([(1, PROMPT, 151)], [(1, 100)]),
        ([(1, PROMPT, 100), (2, PROMPT, 40)], [(1, 100), (2, 40)]),
        ([(1, PROMPT, 120), (2, SAMPLING, 1)], [(2, 1), (1, 99)]),
        ([(1, PROMPT, 300), (2, PROMPT, 300)], [(1, 50), (2, 50)]),
        ([(1, PROMPT, 300), (2, PROMPT, 20)], [(1, 80), (2, 20)]),  # what a short one leaves is the others'
        ([(1, PROMPT, 90), (2, PROMPT, 90), (3, PROMPT, 5)], [(1, 47), (2, 48), (3, 5)]),
        ([(1, PROMPT, 300), (2, SAMPLING, 1)], [(2, 1), (1, 99)]),
        ([(1, EARLY, 50), (2, PROMPT, 70)], [(2, 70), (1, 30)]),
        ([(1, EARLY, 50), (2, PROMPT, 100)], [(2, 100)]),
        ([(1, EARLY, 50), (2, PROMPT, 95)], [(2, 95)]),  # what is left is not worth a share
        ([(1, SAMPLING, 250), (2, PROMPT, 50)], [(1, 100), (2, 16)]),
        ([(number, PROMPT, 50) for number in range(20)], [(0, 16), (1, 16), (2, 17), (3, 17), (4, 17), (5, 17)]),
        (
            [(9, PROMPT, 50), *((number, SAMPLING, 1) for number in range(150))],
            [*((number, 1) for number in range(150)), (9, 16)],
        ),
    ],
)
def test_a_step_is_shared_out(wants, expected):
    assert [(part.seq, part.num_ids) for part in plan([Want(*want) for want in wants], flat(100))] == expected


def test_a_step_deep_in_a_context_holds_less():
    pace = Pace(0.275)
    shallow, deep = (next(plan([Want(1, PROMPT, 9999, past)], pace)).num_ids for past in (0, 8192))
    assert (shallow, deep) == (237, 40)
    assert pace.cost(deep, 8192) == pytest.approx(pace.cost(shallow, 0), rel=0.05)


@given(st.integers(1, 5000), st.integers(0, 8000))
def test_any_number_of_ids_is_affordable_at_its_cost(count, past):
    pace = Pace(0.25)
    assert pace.affordable(pace.cost(count, past), past) == count


def test_a_slow_machine_cuts_prompts_small_only_while_others_sample():
    pace = Pace(0.275)
    told(pace, 200, 9.0)
    (alone,) = plan([Want(1, PROMPT, 9999)], pace)
    _, beside = plan([Want(1, PROMPT, 9999), Want(2, SAMPLING, 1)], pace)
    assert (alone.num_ids, beside.num_ids) == (237, 61)


def told(pace: Pace, cost: float, seconds: float) -> float:
    """The budget after many steps of this kind."""
    for _ in range(60):
        pace.took(cost, seconds)
    return pace.budget


def test_the_pace_follows_what_steps_take():
    pace = Pace(0.275)
    assert pace.budget == pytest.approx(250)
    assert told(pace, 200, 0.045) == pytest.approx(2500, rel=0.01)  # 0.1 ms a unit
    assert told(pace, 200, 0.425) == pytest.approx(125, rel=0.01)
    assert told(pace, 200, 60.0) == 4 * FEWEST
    assert told(pace, 64, 0.01) == 4096


def test_a_step_of_few_ids_says_what_it_takes_to_begin_one():
    pace = Pace(0.275)
    assert told(pace, 8, 0.075) == pytest.approx(200, rel=0.01)
    assert told(pace, 20, 9.0) == pytest.approx(200, rel=0.01)  # neither few nor many


def test_a_step_does_as_much_as_it_costs_to_begin():
    assert told(Pace(0.25), 1, 0.4) == pytest.approx(400, rel=0.01)


def test_however_slow_it_was_the_pace_finds_back():
    pace = Pace(0.275)
    told(pace, 200, 1e6)
    for _ in range(200):
        cost = sum(part.cost for part in plan([Want(1, PROMPT, 5000)], pace))
        pace.took(cost, 0.025 + cost * 1e-3)
    assert pace.budget == pytest.approx(250, rel=0.05)


def test_a_burst_of_a_neighbours_work_changes_little():
    pace = Pace(0.275)
    pace.took(200, 60.0)
    assert pace.budget == pytest.approx(250 / 1.75, rel=0.01)


WANTS = st.lists(
    st.builds(Want, st.none(), st.sampled_from(Kind), st.integers(1, 5000), st.integers(0, 8000)), max_size=40
).map(lambda wants: [want._replace(seq=seq) for seq, want in enumerate(wants)])


@given(WANTS, st.sampled_from([0.02, 0.25, 4.0]))
def test_any_step_keeps_to_its_time_and_moves_everybody_on_that_it_can(wants, max_step_s):
    pace = Pace(max_step_s)
    parts = {part.seq: part for part in plan(wants, pace)}
    for want in wants:
        if part := parts.get(want.seq):
            assert 0 < part.num_ids <= want.num_ids
            assert part.cost == pace.cost(part.num_ids, want.num_past)
        assert part or want.kind is not SAMPLING
    prompts = [want for want in wants if want.kind is PROMPT]
    assert not prompts or prompts[0].seq in parts
    sampling = sum(parts[want.seq].cost for want in wants if want.kind is SAMPLING)
    others = sum(parts[want.seq].cost for want in wants if want.kind is not SAMPLING and want.seq in parts)
    # Beyond its time a step goes only for the least share of one prompt, or where a little more is the rest of all.
    is_rest = not sampling and all(parts[want.seq].num_ids == want.num_ids for want in prompts)
    most = pace.budget if sampling else pace.budget_alone * (A_LITTLE_MORE if is_rest and prompts else 1)
    assert others <= max(most - sampling, 0) + pace.cost(FEWEST, 8000)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30), st.integers(20, 400))
def test_no_prompt_waits_for_ever(lengths, most):
    """With what came later it shares at worst evenly: it is done after its own steps times the number of prompts."""
    pace, left, steps = flat(most), dict(enumerate(lengths)), 0
    while left:
        steps += 1
        for part in list(plan([Want(seq, PROMPT, count) for seq, count in left.items()], pace)):
            left[part.seq] -= part.num_ids
            if not left[part.seq]:
                del left[part.seq]
                ahead = sum(lengths[: part.seq]) + lengths[part.seq] * (len(lengths) - part.seq)
                assert steps <= ahead / (most / 2) + len(lengths)
