"""`longloop serve`: settings, backend and server put together."""

import logging
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import trio
from rich.console import Console
from rich.table import Table

from engine.commands.backend import choose_backend
from engine.errors import EngineError
from engine.server.app import serve
from engine.settings import Settings, load


class UsageError(Exception):
    """What the user typed cannot be done; the message says why in one sentence."""


def read_settings(file: Path | None, assignments: list[str], flags: Mapping[str, Any]) -> Settings:
    """Settings from `--config`, `--set name=value` and the flags that were given (None means not given).

    Raises UsageError naming the setting.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise UsageError(f"--set takes name=value, not {assignment!r}.")
        given[name.strip()] = _parse(value.strip())
    try:
        return load(file, **given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"Setting {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error


def _parse(text: str) -> Any:
    """The value as TOML reads it (numbers, true, lists), or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def show_settings(settings: Settings) -> None:
    """Print every setting with its value, default and meaning."""
    table = Table("setting", "value", "default", "meaning", title="longloop settings")
    for name, field in type(settings).model_fields.items():
        table.add_row(name, str(getattr(settings, name)), str(field.default), field.description or "")
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def serve_command(settings: Settings) -> None:
    """Run the server until it is told to stop. Raises UsageError for what keeps it from starting."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    console = Console(stderr=True)
    try:
        trio.run(_serve, settings, console)
    except* (EngineError, ValueError) as group:
        raise UsageError(_first(group)) from group
    except* OSError as group:
        raise UsageError(f"Cannot listen on {settings.host}:{settings.port}: {_first(group)}") from group


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    """The message of a group's first leaf."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


class Stages:
    """Prints the progress of set-up work: a line per stage, and a line per further fifth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._fifth = 0

    def report(self, stage: str, fraction: float) -> None:
        """One step of progress; `fraction` from 0 to 1."""
        fifth = int(fraction * 5)
        if stage == self._stage and fifth <= self._fifth:
            return
        self._stage, self._fifth = stage, fifth
        self._console.print(f"[dim]{stage}: {fifth * 20} %[/]" if fifth else f"[dim]{stage}[/]")


async def _serve(settings: Settings, console: Console) -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve, choose_backend(settings, Stages(console).report), settings)
        url = f"ws://{settings.host}:{port}/v1/responses"
        # On stdout and alone on its line, so that scripts can read it.
        print(f"longloop listens on {url}", flush=True)
        console.print(f"[dim]try:[/] longloop run 'What is the weather in Paris?' --url {url}")
        console.print("[dim]stop with Ctrl-C; paused runs end, running steps get time to finish[/]")
