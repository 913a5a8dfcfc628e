"""`longloop compare --quick`: one scripted run of twenty tool calls through all designs, side by side.

Rounds alternate between the designs, so that what else the machine does falls on all of them. The runs must come out
the same, item by item; what differs is the time, the bytes and the work done again.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import trio

from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine
from engine.bench.processes import open_longloop
from engine.compare.played import Played
from engine.compare.sockets import play_append, play_chain, play_inject
from engine.compare.stateless import play_stateless
from engine.compare.work import scenario, without_ids

PLAYERS: Final = (play_stateless, play_chain, play_inject, play_append)
_ROUND_TIMEOUT_S: Final = 120


class RunsDiffer(Exception):
    """Two designs did not come out the same; the message says where."""


async def compare_quick(
    rounds: int, tokens_per_second: float, report: Callable[[Played], None], *, tokenizer: str = "default"
) -> dict[str, Any]:
    """Play the run `rounds` times by each design; the machine-readable result.

    Calls `report` after each run. Raises RunsDiffer.
    """
    runs: list[Played] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_longloop(scenario(tokens_per_second), Path(folder), tokenizer=tokenizer) as server:
            for number in range(rounds + 1):  # the first warms up and is not counted
                for play in PLAYERS:
                    with trio.fail_after(_ROUND_TIMEOUT_S):
                        played = await play(server.port)
                    if number:
                        runs.append(played)
                        report(played)
    check_equal(runs)
    return summarise(runs)


def check_equal(runs: list[Played]) -> None:
    """Raises RunsDiffer at the first item in which two runs differ."""
    first = runs[0]
    expected = without_ids(first.items)
    for other in runs[1:]:
        items = without_ids(other.items)
        for index, (one, two) in enumerate(zip(expected, items, strict=False)):
            if one != two:
                raise RunsDiffer(f"item {index}: {first.lifecycle} has {one}, {other.lifecycle} has {two}")
        if len(items) != len(expected):
            raise RunsDiffer(f"{first.lifecycle} has {len(expected)} items, {other.lifecycle} {len(items)}")


def middle(runs: list[Played]) -> list[Played]:
    """The run of each design whose time is the median, in the order in which they first came."""
    designs = list(dict.fromkeys(played.lifecycle for played in runs))
    found = []
    for design in designs:
        own = sorted((played for played in runs if played.lifecycle == design), key=lambda played: played.wall_ms)
        found.append(own[len(own) // 2])
    return found


def summarise(runs: list[Played]) -> dict[str, Any]:
    """The median run of each design, and what the budgets say of them."""
    walls = {played.lifecycle: played.wall_ms for played in middle(runs)}
    figures = [
        Figure("append over chain, wall time", walls["append"] / walls["chain"], "≤", 1.0),
        Figure("chain over stateless, wall time (published: 0.6)", walls["chain"] / walls["stateless"], "≤", 1.0),
    ]
    return {
        "compare": "quick",
        "budgets": figures,
        "runs": [_as_json(played) for played in middle(runs)],
        "spread_ms": {name: _spread(runs, name) for name in walls},
        "machine": describe_machine(),
    }


def _as_json(played: Played) -> dict[str, Any]:
    fields = asdict(played)
    return fields | {"items": len(played.items)}


def _spread(runs: list[Played], lifecycle: str) -> float:
    """Standard deviation of the wall times."""
    return statistics.pstdev([played.wall_ms for played in runs if played.lifecycle == lifecycle])
