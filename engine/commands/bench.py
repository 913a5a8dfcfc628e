"""`longloop bench …`: runs a bench, prints a table, and with `--json` one object as the last line."""

import json
from functools import partial
from statistics import median
from typing import Any

import trio
from rich.console import Console
from rich.table import Table

from engine.bench.engines import Engine
from engine.bench.local import LocalFigure, bench_local
from engine.bench.memory import bench_memory
from engine.bench.phases import PhaseFigures, bench_phases
from engine.bench.remote import TurnFigures as RemoteFigures
from engine.bench.remote import bench_remote
from engine.bench.replay import Replay, Turn, bench_peers, middle_ratio
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


def local_command(*, model: str, longest: int, largest: int, rounds: int, as_json: bool) -> None:
    """The local model, served and bare."""
    console = Console()
    table = Table("work", "tokens/s served / bare", "ms served / bare", "served over bare")

    def report(figure: LocalFigure) -> None:
        served, bare = figure.per_s
        row = [
            figure.work,
            f"{served:,.1f} / {bare:,.1f}",
            f"{1e3 * figure.served_s:,.0f} / {1e3 * figure.bare_s:,.0f}",
            f"{figure.ratio:.2f}",
        ]
        table.add_row(*row)
        console.print(f"[dim]{' · '.join(row)}[/]")

    histories = [length for length in (512, 2_048, 7_600) if length <= longest]
    batches = [batch for batch in (1, 4, 8) if batch <= largest]
    result = trio.run(partial(bench_local, model, histories, batches, rounds, report))
    console.print(table)
    _finish(console, result, as_json)


def peers_command(*, model: str, initial: int, grow: int, turns: int, others: list[str], as_json: bool) -> None:
    """An agent run on longloop and on other servers."""
    console = Console()

    def report(number: int, replays: list[Replay]) -> None:
        times = " · ".join(f"{replay.name} {1e3 * replay.turns[-1].first_s:,.0f} ms" for replay in replays)
        console.print(f"[dim]turn {number + 1}, first token: {times}[/]")

    engines = [_engine(other) for other in others]
    bench = partial(bench_peers, model, initial=initial, grow=grow, turns=turns, others=engines, report=report)
    result = trio.run(bench)
    replays = [Replay(one["name"], [Turn(**turn) for turn in one["turns"]], one["note"]) for one in result["replays"]]
    table = Table("", "first token, first / middle / last turn ms", "over longloop's (middle)", "whole run s")
    for replay in replays:
        table.add_row(*_replay_row(replays[0], replay))
    console.print(table)
    _finish(console, result, as_json)


def _engine(written: str) -> Engine:
    """NAME=URL or NAME=URL=MODEL."""
    name, _, rest = written.partition("=")
    url, _, model = rest.partition("=")
    return Engine(name, url.rstrip("/"), model or "default")


def _replay_row(ours: Replay, replay: Replay) -> list[str]:
    if not replay.turns:
        return [replay.name, replay.note, "", ""]
    times = [1e3 * turn.first_s for turn in replay.turns]
    return [
        replay.name,
        f"{times[0]:,.0f} / {median(times):,.0f} / {times[-1]:,.0f}",
        f"{middle_ratio(ours, replay):.2f}",
        f"{replay.total_s:.1f}",
    ]


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


def remote_command(*, num_tokens: int, rounds: int, turns: int, longest: int, is_chat: bool, as_json: bool) -> None:
    """What the server costs beside a service."""
    console = Console()
    table = Table("history", "bodies", "server's processor time of a turn, ms", "bytes to the service")

    def report(figures: RemoteFigures) -> None:
        size = f"{figures.body_bytes:,.0f}"
        table.add_row(f"{figures.history_tokens:,}", figures.encoding, f"{figures.cpu_ms:.3f}", size)

    result = trio.run(
        partial(bench_remote, num_tokens, rounds, turns, longest, report, tokenizer="" if is_chat else "default")
    )
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
