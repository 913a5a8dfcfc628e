"""`longloop usage`: what the ledger says was used."""

import csv
import sys
from datetime import date
from pathlib import Path
from typing import Final, get_args

import msgspec
from rich.console import Console
from rich.table import Table

from engine.commands.serve import UsageError
from engine.errors import EngineError
from engine.ledger_database import COLUMNS
from engine.ledger_reader import Column, LedgerReader, Usage, open_ledger_reader

_FIELDS: Final = [*COLUMNS, "status"]
_NUMBERS: Final = ("runs", "segments", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def usage_command(
    folder: Path, *, by: str, since: str | None = None, until: str | None = None, export: str | None = None
) -> None:
    """Print a table of what was used, by these columns, or every segment as JSON lines or CSV.

    since, until: days, both included. Raises UsageError.
    """
    columns, first, last = _columns(by), _day(since, "--since"), _day(until, "--until")
    if export not in (None, "jsonl", "csv"):
        raise UsageError(f"--export takes jsonl or csv, not {export!r}.")
    try:
        with open_ledger_reader(folder) as reader:
            if export is None:
                _show(reader.usage(columns, first, last), columns)
            else:
                _export(reader, first, last, export)
    except EngineError as error:
        raise UsageError(error.message) from error


def _columns(by: str) -> list[Column]:
    names = [name.strip() for name in by.split(",") if name.strip()]
    known = get_args(Column)
    for name in names:
        if name not in known:
            raise UsageError(f"--by takes {', '.join(known)}, not {name!r}.")
    return [column for name in names for column in known if column == name]


def _day(text: str | None, flag: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise UsageError(f"{flag} takes a day such as 2026-01-31, not {text!r}.") from error


def _show(usages: list[Usage], columns: list[Column]) -> None:
    table = Table(title="tokens used (days are UTC)")
    for column in columns:
        table.add_column(column, overflow="fold")
    for name in _NUMBERS:
        table.add_column(name.removesuffix("_tokens"), justify="right")
    for usage in usages:
        table.add_row(*usage.group, *(f"{getattr(usage, name):,}" for name in _NUMBERS))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _export(reader: LedgerReader, since: date | None, until: date | None, form: str) -> None:
    segments = reader.segments(since, until)
    if form == "jsonl":
        for segment in segments:
            print(msgspec.json.encode(segment).decode())
    else:
        writer = csv.DictWriter(sys.stdout, _FIELDS)
        writer.writeheader()
        writer.writerows(segments)
