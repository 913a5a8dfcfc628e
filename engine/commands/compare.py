"""`longloop compare --quick`: plays the designs side by side and prints what each took."""

import json
import sys
from functools import partial

import trio
from rich.console import Console
from rich.table import Table

from engine.commands.bench import print_figures
from engine.compare.played import Played
from engine.compare.quick import RunsDiffer, compare_quick
from engine.compare.work import NUM_CALLS


def compare_command(*, rounds: int, tokens_per_second: float, as_json: bool) -> None:
    """One scripted run of twenty calls, by every design, several times."""
    console = Console()
    speed = f"{tokens_per_second:,.0f} tokens/s" if tokens_per_second else "as fast as can be"
    console.print(f"A run of {NUM_CALLS} tool calls by each design, {rounds} times; a scripted model at {speed}.")

    def report(played: Played) -> None:
        console.print(f"[dim]{played.lifecycle}: {played.wall_ms:,.0f} ms[/]")

    try:
        result = trio.run(partial(compare_quick, rounds, tokens_per_second, report))
    except RunsDiffer as error:
        console.print(f"[red]The designs did not come out the same:[/] {error}")
        sys.exit(1)
    console.print("All runs made the same items.")
    table = Table("design", "wall ms", "sent kB", "received kB", "items rendered", "tokens rendered", "prepared ms")
    for run in result["runs"]:
        table.add_row(
            run["lifecycle"],
            f"{run['wall_ms']:,.0f} ± {result['spread_ms'][run['lifecycle']]:,.0f}",
            f"{run['bytes_sent'] / 1000:,.0f}",
            f"{run['bytes_received'] / 1000:,.0f}",
            f"{run['items_rendered']:,}",
            f"{run['tokens_rendered']:,}",
            f"{run['prepare_ms']:,.1f}",
        )
    console.print(table)
    print_figures(console, result)
    if as_json:
        print(json.dumps(result | {"budgets": [figure.as_json() for figure in result["budgets"]]}))
