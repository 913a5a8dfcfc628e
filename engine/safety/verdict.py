"""What a policy says of a text, and what is recorded of that in the response."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from engine.safety.config import Action, Place

Verdict = Literal["pass", "flag", "block", "failed"]
"""`failed`: nobody knows, because the classifier raised, hung or was lost."""

Outcome = Literal["flagged", "blocked", "failed"]


class Finding(msgspec.Struct, frozen=True, gc=False):
    """A policy had something to say, `count` times in this run."""

    policy: str
    place: Place
    outcome: Outcome
    count: int = 1


_OUTCOMES: dict[Verdict, Outcome] = {"flag": "flagged", "block": "blocked", "failed": "failed"}


def finding(policy: str, place: Place, verdict: Verdict) -> Finding:
    """What is recorded of a verdict other than `pass`."""
    return Finding(policy, place, _OUTCOMES[verdict])


def merged(known: Iterable[Finding], new: Iterable[Finding]) -> list[Finding]:
    """Both, the same ones counted together: a run of a thousand steps has no longer list than one of two."""
    found: dict[tuple[str, Place, Outcome], Finding] = {}
    for each in (*known, *new):
        key = (each.policy, each.place, each.outcome)
        before = found[key].count if key in found else 0
        found[key] = msgspec.structs.replace(each, count=before + each.count)
    return list(found.values())


def stops(verdict: Verdict, action: Action, *, fails_closed: bool) -> bool:
    """Whether a run ends by it. A policy that only flags never ends one, whatever happens to it."""
    return verdict == "block" or (verdict == "failed" and action == "block" and fails_closed)
