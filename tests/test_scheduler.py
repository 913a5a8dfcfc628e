"""scheduler.py: who takes part in a step, and with how much."""

import pytest

from engine.backends.scheduler import Kind, Want, plan

SAMPLING, PROMPT, EARLY = Kind.SAMPLING, Kind.PROMPT, Kind.EARLY


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ([], []),
        ([(1, PROMPT, 10)], [(1, 10)]),
        ([(1, PROMPT, 300)], [(1, 100)]),
        ([(1, PROMPT, 60), (2, PROMPT, 60), (3, PROMPT, 5)], [(1, 60), (2, 40)]),
        ([(1, PROMPT, 300), (2, SAMPLING, 1)], [(2, 1), (1, 99)]),
        ([(1, EARLY, 50), (2, PROMPT, 70)], [(2, 70), (1, 30)]),
        ([(1, EARLY, 50), (2, PROMPT, 100)], [(2, 100)]),
        ([(1, SAMPLING, 250), (2, PROMPT, 5)], [(1, 100)]),
        ([(number, SAMPLING, 1) for number in range(150)], [(number, 1) for number in range(150)]),
    ],
)
def test_a_step_is_shared_out(wants, expected):
    assert list(plan([Want(*want) for want in wants], chunk=100)) == expected
