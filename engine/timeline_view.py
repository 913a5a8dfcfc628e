"""How a timeline looks: live rows in a terminal, plain lines elsewhere, JSON lines on request."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

import msgspec
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from engine.client_driver import Retry
from engine.client_state import Result
from engine.client_tools import ToolCall, ToolOutcome
from engine.client_wire import Event, RunFailed
from engine.timeline import Row, Timeline, milliseconds

MARKS: Final = {
    "thought": "·",
    "message": "»",
    "call": "→",
    "hosted": "⇒",
    "model": "…",
    "step": "‖",
    "note": "!",
    "end": "■",
}
_STYLES: Final = {
    "thought": "dim",
    "message": "",
    "call": "cyan",
    "hosted": "cyan",
    "model": "dim",
    "step": "dim",
    "note": "yellow",
    "end": "green",
}
# Thoughts and outputs can be pages long; a timeline needs what they are about.
MAX_TEXT: Final = 300
# Frames a second; deltas come much faster than anybody reads.
REFRESH_HZ: Final = 12
# Columns that a text gets however narrow the terminal is.
MIN_WIDTH: Final = 20


class View(Protocol):
    """What `longloop run` tells whoever shows the run."""

    def event(self, event: Event) -> None: ...

    def call(self, call: ToolCall) -> None: ...

    def answer(self, outcome: ToolOutcome) -> None: ...

    def refuse(self, call: ToolCall) -> None: ...

    def retry(self, retry: Retry) -> None: ...

    def end(self, result: Result) -> None: ...

    def fail(self, error: RunFailed) -> None: ...


class JsonView:
    """Every event and tool outcome as a line of JSON, for programs; the last one of a turn holds the result."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def event(self, event: Event) -> None:
        self._print(event)

    def call(self, call: ToolCall) -> None:
        self._print({"type": "longloop.tool_call", "call_id": call.key, "name": call.name, "arguments": call.arguments})

    def answer(self, outcome: ToolOutcome) -> None:
        line = {"output": outcome.output, "is_error": outcome.is_error, "duration_s": outcome.duration_s}
        self._print({"type": "longloop.tool_output", "call_id": outcome.call.key, **line})

    def refuse(self, call: ToolCall) -> None:
        line = {"approval_request_id": call.key, "name": call.name, "arguments": call.arguments}
        self._print({"type": "longloop.not_approved", **line})

    def retry(self, retry: Retry) -> None:
        line = {"attempt": retry.attempt, "delay_s": retry.delay_s, "reason": retry.reason.message}
        self._print({"type": "longloop.retry", **line})

    def end(self, result: Result) -> None:
        self._print({"type": "longloop.result", "result": result})

    def fail(self, error: RunFailed) -> None:
        self._print({"type": "longloop.failed", "error": error.body()})

    def _print(self, line: object) -> None:
        print(msgspec.json.encode(line).decode(), file=self._file, flush=True)


class TimelineView:
    """Finished rows printed for good, open ones in a region below that is drawn again and again.

    Without a terminal the region is left out, and so are colours.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = trio.current_time) -> None:
        self._console = console
        self._clock = clock
        self._start_s = clock()
        self._timeline = Timeline()
        self._live: Live | None = None

    def event(self, event: Event) -> None:
        self._timeline.receive(event, self._now_s())
        self._print_finished()

    def call(self, call: ToolCall) -> None:
        self._timeline.call(call, self._now_s())

    def answer(self, outcome: ToolOutcome) -> None:
        self._timeline.answer(outcome, self._now_s())
        self._print_finished()

    def refuse(self, call: ToolCall) -> None:
        self._timeline.refuse(call, self._now_s())
        self._print_finished()

    def retry(self, retry: Retry) -> None:
        text = f"{retry.reason.message}; trying again in {milliseconds(retry.delay_s * 1000)}"
        self._timeline.note(text, self._now_s())
        self._print_finished()

    def end(self, result: Result) -> None:
        self._timeline.end(result, self._now_s())
        self._print_finished()

    def fail(self, error: RunFailed) -> None:
        self._timeline.fail(error, self._now_s())
        self._print_finished()

    @contextmanager
    def open_region(self) -> Iterator[None]:
        """Show open rows while the block lasts, in a terminal; `redraw` keeps them moving."""
        if not self._console.is_terminal:
            yield
            return
        # Not rich's own refresh: it draws from a thread while rows change.
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            try:
                yield
            finally:
                self._live.update(Group(), refresh=True)
                self._live = None

    async def redraw(self) -> None:
        """Draw the open rows again and again, until cancelled."""
        while True:
            self._draw_region()
            await trio.sleep(1 / REFRESH_HZ)

    def _draw_region(self) -> None:
        if self._live is not None:
            rows = [self._styled(row, MAX_TEXT) for row in self._timeline.open_rows]
            self._live.update(Group(*rows), refresh=True)

    def _print_finished(self) -> None:
        if not (rows := self._timeline.take_finished()):
            return
        # Printing draws the region again as it was, which must not show what has just finished.
        self._draw_region()
        for row in rows:
            text = self._styled(row, None if row.kind == "message" else MAX_TEXT)
            self._console.print(text, highlight=False, soft_wrap=True)

    def _styled(self, row: Row, max_text: int | None) -> Text:
        # In a file a row is a line, whatever its length: it is there to be searched.
        terminal = self._console if self._console.is_terminal else None
        return styled(row, self._now_s(), max_text=max_text, terminal=terminal)

    def _now_s(self) -> float:
        return self._clock() - self._start_s


def styled(row: Row, now_s: float, *, max_text: int | None, terminal: Console | None = None) -> Text:
    """A row: when (it ended or, while it is open, began), what, how long.

    Of a longer text than `max_text` an open row shows the end, where something happens, and a finished one the start.
    With a terminal, lines are broken between words where it ends; all but the first begin where the text begins.
    """
    head = Text.assemble(
        (f"{row.start_s + (row.duration_s or 0):7.2f} s ", "dim"), (f"{MARKS[row.kind]} ", _style(row))
    )
    first, *rest = _wrapped(_body(row, now_s, max_text), terminal, head.cell_len)
    margin = Text(" " * head.cell_len)
    return Text("\n").join([head + first, *(margin + line if line else line for line in rest)])


def _wrapped(body: Text, terminal: Console | None, indent: int) -> Iterator[Text]:
    if terminal is None:
        yield from body.split("\n", allow_blank=True)
        return
    # Never into the last column: some terminals break a line that reaches it.
    for line in body.wrap(terminal, max(terminal.width - 1 - indent, MIN_WIDTH), overflow="fold"):
        line.rstrip()
        yield line


def _style(row: Row) -> str:
    return "red" if row.is_error else _STYLES[row.kind]


def _body(row: Row, now_s: float, max_text: int | None) -> Text:
    text = Text()
    if row.title:
        text.append(row.title, _style(row))
        text.append(" = " if row.duration_s is not None else " …")
    text.append(_shown(row, max_text), "" if row.kind in ("call", "hosted") and not row.is_error else _style(row))
    if row.kind in ("call", "hosted", "thought", "model"):
        elapsed_s = now_s - row.start_s if row.duration_s is None else row.duration_s
        text.append(f"  {milliseconds(elapsed_s * 1000)}", "dim")
    return text


def _shown(row: Row, max_text: int | None) -> str:
    if max_text is None:
        return row.text.rstrip()
    text = " ".join(row.text.split())
    if len(text) <= max_text:
        return text
    return f"…{text[-max_text:]}" if row.duration_s is None else f"{text[:max_text]}…"


def choose_view(*, as_json: bool) -> JsonView | TimelineView:
    """JSON lines on stdout, or a timeline."""
    return JsonView(sys.stdout) if as_json else TimelineView(Console())
