"""budget.py: what is refused, by a table, and by walks beside the plainest possible count."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.budget import Budget, Limits, Period, period_start
from engine.ledger import QuotaExceeded

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2


def budget(of_server: int = 0, of_principal: int = 0, period: Period = "day", **used: int) -> Budget:
    return Budget(Limits(of_server, of_principal, period), used, NOON)


def test_without_limits_nothing_is_refused() -> None:
    one = budget(ann=10**12)
    one.check("ann", 10**12, NOON)
    one.reserve("r", "ann", 10**12, NOON)


@pytest.mark.parametrize(
    ("limits", "num_tokens", "is_refused"),
    [
        ((0, 100), 60, False),
        ((0, 100), 61, True),
        ((150, 0), 40, False),  # another's 70 count, too
        ((150, 0), 41, True),
        ((109, 100), 1, True),
    ],
)
def test_what_is_used_counts(limits: tuple[int, int], num_tokens: int, is_refused: bool) -> None:
    one = budget(*limits, ann=40, bob=70)
    if is_refused:
        with pytest.raises(QuotaExceeded):
            one.check("ann", num_tokens, NOON)
    else:
        one.check("ann", num_tokens, NOON)


def test_open_runs_count_with_what_they_have_set_aside() -> None:
    one = budget(of_principal=100)
    one.reserve("r", "ann", 60, NOON)
    with pytest.raises(
        QuotaExceeded, match="0 are used, 60 set aside for open responses, and this one would set aside 41"
    ):
        one.reserve("s", "ann", 41, NOON)
    one.reserve("s", "ann", 40, NOON)
    one.reserve("t", "bob", 100, NOON)
    one.release("r")
    one.reserve("u", "ann", 60, NOON)


def test_what_a_run_uses_comes_out_of_what_it_has_set_aside() -> None:
    one = budget(of_principal=100)
    one.reserve("r", "ann", 60, NOON)
    one.settle("r", 50, NOON)
    one.check("ann", 40, NOON)
    one.settle("r", 25, NOON)  # 15 more than it had set aside: it is not stopped, but they count
    one.check("ann", 25, NOON)
    with pytest.raises(QuotaExceeded):
        one.check("ann", 26, NOON)
    one.release("r")
    with pytest.raises(QuotaExceeded):
        one.check("ann", 26, NOON)


def test_new_day_begins_with_nothing_used_but_keeps_what_is_set_aside() -> None:
    one = budget(of_server=100, ann=60)
    one.reserve("r", "ann", 30, NOON)
    with pytest.raises(QuotaExceeded, match="may use 100 tokens today"):
        one.check("ann", 11, NOON + DAY / 2 - 1)
    one.check("ann", 70, NOON + DAY / 2)
    with pytest.raises(QuotaExceeded):
        one.check("ann", 71, NOON + DAY / 2)
    one.settle("r", 30, NOON + DAY)
    with pytest.raises(QuotaExceeded):
        one.check("ann", 71, NOON + DAY)


def test_clock_that_is_set_back_gives_nobody_tokens() -> None:
    one = budget(of_server=100, ann=60)
    with pytest.raises(QuotaExceeded):
        one.check("ann", 41, NOON - 3 * DAY)


def test_total_never_begins_anew() -> None:
    one = budget(of_server=100, period="total", ann=60)
    with pytest.raises(QuotaExceeded, match="may use 100 tokens:"):
        one.check("ann", 41, NOON + 1000 * DAY)


def test_periods() -> None:
    assert period_start("day", NOON) == NOON - DAY / 2
    assert period_start("total", NOON) == 0


@given(seed=st.integers(0, 2**32))
def test_any_walk_counts_as_a_plain_list_does(seed: int) -> None:
    chance = random.Random(seed)
    of_server, of_principal = chance.choice([0, 200]), chance.choice([0, 100])
    one, now = budget(of_server, of_principal), NOON
    used: list[tuple[str, int, float]] = []
    reserved: dict[str, tuple[str, int]] = {}

    def fits(principal: str, num_tokens: int) -> bool:
        start = period_start("day", now)
        spent = [(who, n) for who, n, at in used if at >= start] + list(reserved.values())
        mine = sum(n for who, n in spent if who == principal)
        everybodys = sum(n for _, n in spent)
        return not (
            (of_principal and mine + num_tokens > of_principal) or (of_server and everybodys + num_tokens > of_server)
        )

    for number in range(60):
        now += chance.choice([0, 0, 0, DAY / 5])
        match chance.randrange(3):
            case 0:
                principal, num_tokens = chance.choice("abc"), chance.randrange(1, 60)
                try:
                    one.reserve(str(number), principal, num_tokens, now)
                except QuotaExceeded:
                    assert not fits(principal, num_tokens)
                else:
                    assert fits(principal, num_tokens)
                    reserved[str(number)] = (principal, num_tokens)
            case 1 if reserved:
                run = chance.choice(sorted(reserved))
                principal, left = reserved[run]
                num_tokens = chance.randrange(40)
                one.settle(run, num_tokens, now)
                used.append((principal, num_tokens, now))
                reserved[run] = (principal, max(left - num_tokens, 0))
            case 2 if reserved:
                run = chance.choice(sorted(reserved))
                del reserved[run]
                one.release(run)
