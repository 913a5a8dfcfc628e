"""`longloop bench …`: runs a bench, prints a table, and with `--json` one object as the last line."""

import json
from functools import partial
from typing import Any

import trio
from rich.console import Console
from rich.table import Table

from engine.bench.memory import bench_memory
from engine.bench.phases import PhaseFigures, bench_phases
from engine.bench.remote import TurnFigures as RemoteFigures
from engine.bench.remote import bench_remote
from engine.bench.stream import bench_stream
from engine.bench.turn import TurnFigures, bench_turn, histories_up_to


def turn_command(*, turns: int, control_turns: int, longest: int, as_json: bool) -> None:
    """Append to first event, by length of the history."""
    table = Table(
        "history", "items", "cache", "turn p50 / p99 ms", "bare echo p50 / p99 ms", "ratio p50 / p99", "touched"
    )
    console = Console()
    with console.status("appending") as status:

        def report(figures: TurnFigures) -> None:
            table.add_row(*_turn_row(figures))
            status.update(f"appending; {figures.history_tokens:,} tokens of history are done")

        result = trio.run(partial(bench_turn, histories_up_to(longest), turns, control_turns, report))
    console.print(table)
    _finish(console, result, as_json)


def _turn_row(figures: TurnFigures) -> list[str]:
    return [
        f"{figures.history_tokens:,}",
        f"{figures.history_items:,}",
        "on" if figures.cached else "off",
        f"{figures.turn_p50_ms:.3f} / {figures.turn_p99_ms:.3f}",
        f"{figures.echo_p50_ms:.3f} / {figures.echo_p99_ms:.3f}",
        f"{figures.ratio_p50:.2f} / {figures.ratio_p99:.2f}",
        f"{figures.items_touched:,.0f} items, {figures.tokens_touched:,.0f} tokens",
    ]


def phases_command(*, turns: int, control_turns: int, as_json: bool) -> None:
    """What the server does around the model, by the turn's number."""
    console = Console()
    table = Table("phase", "turns", "all again each turn", "first quarter ms", "last quarter ms")

    def report(figures: PhaseFigures) -> None:
        times = (f"{figures.first_ms:.3f}", f"{figures.last_ms:.3f}")
        table.add_row(figures.phase, f"{figures.turns:,}", "yes" if figures.switched else "no", *times)

    result = trio.run(partial(bench_phases, turns, control_turns, report))
    console.print(table)
    _finish(console, result, as_json)


def stream_command(*, num_events: int, rounds: int, as_json: bool) -> None:
    """Token events per second on one connection."""
    console = Console()
    result = trio.run(bench_stream, num_events, rounds)
    table = Table("", "frames/s")
    table.add_row("longloop, token events", f"{result['events_per_s']:,.0f}")
    table.add_row("bare trio-websocket sends", f"{result['bare_per_s']:,.0f}")
    console.print(table)
    _finish(console, result, as_json)


def memory_command(*, num_runs: int, num_tokens: int, as_json: bool) -> None:
    """What a paused run costs the server."""
    console = Console()
    result = trio.run(bench_memory, num_runs, num_tokens)
    table = Table("", "bytes")
    table.add_row(f"paused run of 20 items and {num_tokens:,} tokens", f"{result['bytes_per_run']:,.0f}")
    table.add_row("bare trio-websocket connection", f"{result['bytes_per_bare_connection']:,.0f}")
    table.add_row("what the run adds", f"{result['extra_bytes_per_run']:,.0f}")
    table.add_row("… per token", f"{result['extra_bytes_per_token']:,.1f}")
    console.print(table)
    _finish(console, result, as_json)


def remote_command(*, num_tokens: int, rounds: int, turns: int, longest: int, as_json: bool) -> None:
    """What the server costs beside a service."""
    console = Console()
    table = Table("history", "bodies", "server's processor time of a turn, ms", "bytes to the service")

    def report(figures: RemoteFigures) -> None:
        size = f"{figures.body_bytes:,.0f}"
        table.add_row(f"{figures.history_tokens:,}", figures.encoding, f"{figures.cpu_ms:.3f}", size)

    result = trio.run(partial(bench_remote, num_tokens, rounds, turns, longest, report))
    console.print(table)
    _finish(console, result, as_json)


def _finish(console: Console, result: dict[str, Any], as_json: bool) -> None:
    print_figures(console, result)
    if as_json:
        print(json.dumps(result | {"budgets": [figure.as_json() for figure in result["budgets"]]}))


def print_figures(console: Console, result: dict[str, Any]) -> None:
    """What the budgets say, and what it was measured on."""
    table = Table("", "measured", "budget", "verdict")
    for figure in result["budgets"]:
        table.add_row(*figure.row(), style="red" if figure.is_met is False else None)
    console.print(table)
    machine = result["machine"]
    console.print(f"[dim]{machine['processor']}, {machine['cores']} cores, Python {machine['python']}[/]")
