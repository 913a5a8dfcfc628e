"""`longloop bench phases`: what the server does around the model in a turn, whatever the turn's number.

One run of many turns, the model thinking for no time. Each turn's times are the server's own (`timing`): validating,
classifying, rendering with tokenising, and writing into the ledger. A phase whose cost follows what is new is as quick
in the last turns as in the first. The control has the switches on that make it look at everything again, and wait for
the ledger's disk.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import trio

from engine.bench.budgets import Figure
from engine.bench.machine import describe_machine, percentile
from engine.bench.processes import open_longloop
from engine.bench.sockets import open_socket
from engine.bench.turn import SCENARIO, TOOL, WARM_UP, append_frame, until_done

PHASES: Final = {
    "validate": ("validate_ms",),
    "classify": ("classify_ms",),
    "render and tokenise": ("render_ms", "tokenize_ms"),
    "ledger": ("ledger_ms",),
}
POLICIES: Final = (
    '[{name = "keys", kind = "secrets"},'
    ' {name = "names", kind = "patterns", patterns = ["(?:falcon|heron)-[0-9]{1,9}"], action = "flag"}]'
)
_GROWING: Final = ("classify", "render and tokenise")  # the phases that have a switch


@dataclass(frozen=True)
class PhaseFigures:
    """A phase's median time in the first and in the last quarter of the turns."""

    phase: str
    switched: bool
    turns: int
    first_ms: float
    last_ms: float

    @property
    def growth(self) -> float | None:
        """The last over the first; None for a phase in which nothing happens."""
        return self.last_ms / self.first_ms if self.first_ms else None


async def bench_phases(
    turns: int, control_turns: int, report: Callable[[PhaseFigures], None], *, tokenizer: str = "default"
) -> dict[str, Any]:
    """The run, then the control with fewer turns. Calls `report` with each phase of each.

    tokenizer: a value of the setting of that name.
    """
    figures: list[PhaseFigures] = []
    with tempfile.TemporaryDirectory() as folder:
        for switched in (False, True):
            on, off = str(switched).lower(), str(not switched).lower()
            switches = {"token_cache": off, "safety_history": on, "ledger_wait": on}
            settings = {"tokenizer": tokenizer, "policies": POLICIES} | switches
            async with open_longloop(SCENARIO, Path(folder), **settings) as server:
                with trio.fail_after(600):
                    steps = await _measure(server.port, control_turns if switched else turns)
            for phase in PHASES:
                figures.append(_summarise(phase, steps, switched=switched))
                report(figures[-1])
    return {
        "bench": "phases",
        "budgets": budgets(figures),
        "figures": [asdict(figure) for figure in figures],
        "machine": describe_machine(),
    }


async def _measure(port: int, turns: int) -> list[dict[str, float]]:
    """The server's timing of each turn, in order, after some that are not counted."""
    steps = []
    async with open_socket(port, "/v1/responses?lifecycle=append") as ws:
        await ws.send_message(json.dumps({"type": "response.create", "input": "Read the files.", "tools": [TOOL]}))
        done = await until_done(ws)
        for number in range(turns + WARM_UP):
            await ws.send_message(append_frame(done, number))
            done = await until_done(ws)
            steps.append(done["response"]["timing"]["step"])
    return steps[WARM_UP:]


def _summarise(phase: str, steps: list[dict[str, float]], *, switched: bool) -> PhaseFigures:
    times = [sum(step[name] for name in PHASES[phase]) for step in steps]
    quarter = max(len(times) // 4, 1)
    first, last = times[:quarter], times[-quarter:]
    return PhaseFigures(phase, switched, len(steps), percentile(first, 0.5), percentile(last, 0.5))


def budgets(figures: list[PhaseFigures]) -> list[Figure]:
    """What each phase is held to; with the switches on, those that have one must break the bound."""
    found = []
    for one in figures:
        note = "nothing happens in it" if one.growth is None else ""
        if not one.switched:
            found.append(
                Figure(f"{one.phase}: last over first of {one.turns:,} turns", one.growth, "≤", 1.2, note=note)
            )
        elif one.phase in _GROWING:
            name = f"{one.phase}, all again each turn: last over first of {one.turns:,} turns"
            found.append(Figure(name, one.growth, ">", 1.2, note=note))
    usual, waiting = (one.first_ms for one in figures if one.phase == "ledger")
    return [*found, Figure("ledger, waiting for the disk over not waiting", waiting / usual, ">", 1.2)]
