"""Token budgets: what the server, and each principal, have used in the present period, and set aside for open runs.

A run reserves when it starts and is refused when too little is left; from then on it may go on to its end, so a budget
can be overdrawn by what its open runs take beyond what they had reserved. A period is a day (UTC), or all time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from engine.ledger import QuotaExceeded

Period = Literal["day", "total"]

_DAY_S: Final = 86_400
_READ_MORE: Final = "please check your plan and billing details"  # OpenAI's words; some clients look for them


def period_start(period: Period, now: float) -> float:
    """When the period began in which `now` is."""
    return now // _DAY_S * _DAY_S if period == "day" else 0.0


@dataclass(frozen=True)
class Limits:
    """Tokens per period; 0 means that there is no limit."""

    of_server: int
    of_principal: int
    period: Period = "day"


@dataclass(slots=True)
class _Account:
    used: int = 0
    reserved: int = 0


@dataclass(slots=True)
class _Reservation:
    principal: str
    left: int


class Budget:
    """See the module."""

    def __init__(self, limits: Limits, used: Mapping[str, int], now: float) -> None:
        """used: by principal, in the period in which `now` is."""
        self._limits = limits
        self._started = period_start(limits.period, now)
        self._accounts = {principal: _Account(num_tokens) for principal, num_tokens in used.items()}
        self._server = _Account(sum(used.values()))
        self._open: dict[str, _Reservation] = {}

    def check(self, principal: str, num_tokens: int, now: float) -> None:
        """Raises QuotaExceeded when so many tokens are not left. None are always left."""
        self._roll(now)
        limits, mine = self._limits, self._accounts.get(principal, _Account())
        _check("You", mine, limits.of_principal, num_tokens, limits.period)
        _check("All users of this server together", self._server, limits.of_server, num_tokens, limits.period)

    def reserve(self, response_id: str, principal: str, num_tokens: int, now: float) -> None:
        """Set tokens aside for a run. Raises QuotaExceeded; nothing changed then."""
        self.check(principal, num_tokens, now)
        self._open[response_id] = _Reservation(principal, num_tokens)
        self._add(principal, reserved=num_tokens)

    def settle(self, response_id: str, num_tokens: int, now: float) -> None:
        """An open run has used so many tokens: of those that were set aside for it, as far as they go."""
        self._roll(now)
        reservation = self._open[response_id]
        from_reserved = min(num_tokens, reservation.left)
        reservation.left -= from_reserved
        self._add(reservation.principal, used=num_tokens, reserved=-from_reserved)

    def release(self, response_id: str) -> None:
        """A run has ended: what was set aside for it is free again."""
        reservation = self._open.pop(response_id)
        self._add(reservation.principal, reserved=-reservation.left)

    def _add(self, principal: str, *, used: int = 0, reserved: int = 0) -> None:
        account = self._accounts.setdefault(principal, _Account())
        for one in (account, self._server):
            one.used += used
            one.reserved += reserved
        if not (account.used or account.reserved):
            del self._accounts[principal]

    def _roll(self, now: float) -> None:
        """A new period has begun: nothing of it is used, but what is set aside still is."""
        started = period_start(self._limits.period, now)
        if started <= self._started:  # or the clock was set back, which gives nobody tokens
            return
        self._started = started
        for account in (*self._accounts.values(), self._server):
            account.used = 0
        self._accounts = {principal: account for principal, account in self._accounts.items() if account.reserved}


def _check(who: str, account: _Account, limit: int, num_tokens: int, period: Period) -> None:
    if not (limit and num_tokens) or account.used + account.reserved + num_tokens <= limit:
        return
    when = " today" if period == "day" else ""
    raise QuotaExceeded(
        f"You exceeded your current quota, {_READ_MORE}. {who} may use {limit} tokens{when}: {account.used} are used, "
        f"{account.reserved} set aside for open responses, and this one would set aside {num_tokens}."
    )
