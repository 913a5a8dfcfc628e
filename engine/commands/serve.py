"""`longloop serve`: settings, backend and server put together."""

import difflib
import errno
import logging
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import trio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.backends.base import Backend
from engine.backends.router import Router
from engine.commands.backend import choose_backend
from engine.errors import BackendError, EngineError
from engine.hosted.configured import open_hosts
from engine.safety.configured import open_lookout
from engine.server.app import serve
from engine.settings import ModelDefaults, ModelSettings, Settings, load
from engine.toolfile import ToolFileError

log = logging.getLogger(__name__)


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
        raise UsageError(_fault(error, file, given)) from error
    except FileNotFoundError as error:
        raise UsageError(f"--config: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{file}: nested too deeply") from error
    except (OSError, ValueError) as error:  # not TOML, not UTF-8, or a list in the environment that is no JSON
        raise UsageError(f"{file}: {error}" if file else str(error)) from error


def _fault(error: pydantic.ValidationError, file: Path | None, given: Mapping[str, Any]) -> str:
    """The first fault, with the setting's name and where the value came from unless it was typed."""
    first = error.errors()[0]
    why = first["msg"].removeprefix("Value error, ")  # pydantic's words before ours
    if not first["loc"]:  # two that contradict each other, wherever they come from
        return f"{why}."
    name = str(first["loc"][0])
    variable = f"LONGLOOP_{name.upper()}"
    source = "" if name in given else f" in {variable}" if variable in os.environ else f" in {file}"
    path = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(first["loc"][-1]), _known(first["loc"]), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else " See `longloop serve --show-settings`."
        return f"unknown setting '{path}'{source}.{hint}"
    return f"Setting {path}{source}: {why}."


def _known(path: Sequence[int | str]) -> Iterable[str]:
    """The settings that there are where `path` leads to one."""
    match path:
        case ["models", _, "defaults", _]:
            return ModelDefaults.model_fields
        case ["models", _, _]:
            return ModelSettings.model_fields
    return Settings.model_fields


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
        table.add_row(
            name,
            str(getattr(settings, name)),
            str(field.get_default(call_default_factory=True)),
            field.description or "",
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def serve_command(settings: Settings, read_again: Callable[[], Settings] | None = None) -> None:
    """Run the server until it is told to stop. Raises UsageError for what keeps it from starting.

    read_again: reads the settings anew on SIGHUP, from which the models are served then. Runs go on as they began.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would say each request to a service
    console = Console(stderr=True)
    try:
        stages, announcer = Stages(console), Announcer(settings.host, console)
        on_hangup = None if read_again is None else partial(_reload, read_again)
        trio.run(
            partial(
                serve,
                choose_backend(settings, stages.report, awaits=True),
                settings,
                on_listening=announcer.listening,
                on_ready=announcer.ready,
                on_hangup=on_hangup,
                open_lookout=open_lookout(settings, stages.report),
                open_hosts=open_hosts(settings),
            )
        )
    except* (EngineError, ValueError, ToolFileError) as group:
        raise UsageError(str(_leaf(group))) from group
    except* OSError as group:
        if _leaf(group).errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {settings.port} of {settings.host} is in use, perhaps by another longloop. "
                "Choose another with --port, or --port 0 for a free one."
            ) from group
        raise UsageError(f"Cannot listen on {settings.host}:{settings.port}: {_leaf(group)}") from group


async def _reload(read_again: Callable[[], Settings], backend: Backend) -> None:
    """Serve the models that the settings name now. What is wrong with them is in the log, and nothing changes."""
    if not isinstance(backend, Router):
        log.warning("SIGHUP: only [models] can be read again, and the settings had none")
        return
    try:
        settings = await trio.to_thread.run_sync(read_again)
        await backend.load(settings)
    except* (UsageError, EngineError, ValueError, OSError) as group:
        log.error("SIGHUP: the models stay as they are: %s", _leaf(group))
    except* Exception as group:  # nothing that a file can hold may end the runs that go on
        log.error("SIGHUP: the models stay as they are", exc_info=group)
    else:
        log.info("SIGHUP: the models are now %s", ", ".join(model.id for model in backend.models()))


def _leaf(group: BaseExceptionGroup[Any]) -> Any:
    """A group's first leaf."""
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
        self._console.print(f"[dim]{stage}: {fifth * 20} %[/]" if fifth else f"[dim]{stage}[/]", soft_wrap=True)


class Announcer:
    """Says where the server listens, what to try, and when the model is there."""

    def __init__(self, host: str, console: Console) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._console = console
        self._readiness_url = ""

    def listening(self, port: int) -> None:
        """Connections are taken; the model may still be loading."""
        self._readiness_url = f"http://{self._host}:{port}/readyz"
        url = f"ws://{self._host}:{port}/v1/responses"
        # On stdout and alone there, so that scripts can read it and then close their end.
        print(f"longloop listens on {url}", flush=True)
        self._say(f"[dim]try:[/] longloop run 'What is the weather in Paris?' --url {url}")
        self._say("[dim]stop with Ctrl-C; stored runs can be taken up again, running steps get time to finish[/]")

    def ready(self, failure: BackendError | None) -> None:
        """Runs are sampled at once from now on; or the model could not be loaded."""
        if failure is None:
            self._say(f"[dim]ready: runs are sampled at once; {self._readiness_url} answers 200[/]")
        else:
            self._say(f"not ready: {escape(failure.message)}; {self._readiness_url} answers 503")

    def _say(self, line: str) -> None:
        # Not wrapped: URLs are there to be copied.
        self._console.print(line, soft_wrap=True)
