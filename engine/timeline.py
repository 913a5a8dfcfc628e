"""A run as rows on a time axis: thoughts, messages, calls with their outputs, pauses with what each step cost. Pure.

Events, calls and outcomes go in with the time since the start; finished rows come out once, in the order in which they
finished, and the open ones can be looked at any time. How rows look is `timeline_view`'s business.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from engine.client_state import Result
from engine.client_tools import ToolCall, ToolOutcome
from engine.client_wire import Event, RunFailed
from engine.usage import Timing, Usage

Kind = Literal["thought", "message", "call", "hosted", "model", "step", "note", "end"]

_KINDS: Final[dict[str, Kind]] = {
    "reasoning": "thought",
    "message": "message",
    **dict.fromkeys(("mcp_call", "web_search_call", "file_search_call", "code_interpreter_call"), "hosted"),
}
_TEXT_DELTAS: Final = {
    "response.output_text.delta",
    "response.refusal.delta",
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
}
_TERMINALS: Final = {"response.done", "response.completed", "response.incomplete", "response.failed"}


@dataclass
class Row:
    """One thing that happened, or is happening while `duration_s` is None.

    title: a call's name and arguments, else empty. text: what was said, or the call's output. hosted: a call that the
    server runs.
    """

    kind: Kind
    start_s: float
    title: str = ""
    text: str = ""
    duration_s: float | None = None
    is_error: bool = False


class Timeline:
    """The rows of one run."""

    def __init__(self) -> None:
        self._open: dict[str, Row] = {}
        self._finished: list[Row] = []
        self.num_steps = 0
        self.num_calls = 0
        self._is_sampling = False
        self._quiet_since_s = 0.0  # when there was last something to show, or sampling began

    @property
    def open_rows(self) -> list[Row]:
        """What is happening now, oldest first.

        While the model is loaded, reads its input or writes a call, nothing else is to be seen than that it is at work.
        """
        if self._is_sampling and not self._open:
            return [Row("model", self._quiet_since_s, text="the model is at work")]
        return list(self._open.values())

    def take_finished(self) -> list[Row]:
        """Rows that finished since the last time."""
        rows, self._finished = self._finished, []
        return rows

    # --- what happens ---

    def receive(self, event: Event, now_s: float) -> None:
        """Take in a server event; kinds that do not show are ignored."""
        kind = event["type"]
        if kind == "response.resume.accepted":
            self._set_back(event, now_s)
            return
        is_terminal = kind in _TERMINALS
        # A failed response has the figures of the step before.
        if is_terminal and self._is_sampling and kind != "response.failed":
            self._step(event["response"], now_s)
        if not self._is_sampling:
            self._quiet_since_s = now_s
        # What ends a run at a pause is no step, and its usage was told before.
        self._is_sampling = not is_terminal
        if kind == "response.output_item.added" and event["item"]["type"] in _KINDS:
            kind_of_row = _KINDS[event["item"]["type"]]
            title = _title_of(event["item"]) if kind_of_row == "hosted" else ""
            self._open[event["item"]["id"]] = Row(kind_of_row, now_s, title=title)
        elif kind in _TEXT_DELTAS and (row := self._open.get(event["item_id"])):
            row.text += event["delta"]
        elif kind == "response.output_item.done" and (row := self._open.get(event["item"].get("id"))):
            if row.kind == "hosted":
                self._end_hosted(row, event["item"])
            self._close(event["item"]["id"], now_s)
        elif kind == "response.output_item.done" and _is_cut_call(event["item"]):
            self.note(f"{_title_of(event['item'])} was cut off, so it is not made", now_s)

    def call(self, call: ToolCall, now_s: float) -> None:
        """A tool starts."""
        self.num_calls += 1
        self._open[f"call {call.key}"] = Row("call", now_s, title=f"{call.name}({_arguments(call.arguments)})")

    def answer(self, outcome: ToolOutcome, now_s: float) -> None:
        """A tool has answered."""
        row = self._open[f"call {outcome.call.key}"]
        row.text, row.is_error = outcome.output, outcome.is_error
        self._close(f"call {outcome.call.key}", now_s)

    def refuse(self, call: ToolCall, now_s: float) -> None:
        """A call that the server would have made was not approved."""
        self.note(f"{_title_of(call.item)} was not approved, so it is not made; --approve approves such calls", now_s)

    def note(self, text: str, now_s: float) -> None:
        """Something about the run, such as a lost connection."""
        self._finished.append(Row("note", now_s, text=text, duration_s=0, is_error=True))

    def end(self, result: Result, now_s: float) -> None:
        """The run, or a turn of it, is over: the totals."""
        self._finished.append(Row("end", now_s, text=self._totals(result, now_s), duration_s=0))

    def fail(self, error: RunFailed, now_s: float) -> None:
        """The run failed."""
        text = f"failed ({error.code}): {error.message}"
        self._finished.append(Row("end", now_s, text=text, duration_s=0, is_error=True))

    # --- rows ---

    def _set_back(self, event: Event, now_s: float) -> None:
        """A server was started anew: what was happening in it is no more, but for the calls that it waits for."""
        kept = {f"call {key}" for key in event.get("still_pending") or []}
        self._open = {key: row for key, row in self._open.items() if key in kept}
        self._is_sampling = event.get("status") == "in_progress"
        self.note("the server was started anew; the run goes on from its last stored step", now_s)

    def _end_hosted(self, row: Row, item: dict[str, Any]) -> None:
        self.num_calls += 1
        row.title = _title_of(item)
        row.text = _said(item.get("error")) or item.get("output") or item["status"]
        row.is_error = item["status"] != "completed"

    def _close(self, key: str, now_s: float) -> None:
        row = self._open.pop(key)
        row.duration_s = now_s - row.start_s
        self._quiet_since_s = now_s
        self._finished.append(row)

    def _step(self, response: dict[str, Any], now_s: float) -> None:
        self.num_steps += 1
        usage = msgspec.convert(response.get("usage") or {}, Usage)
        timing = msgspec.convert((response.get("timing") or {}).get("step") or {}, Timing)
        text = f"step {self.num_steps}: {cost(usage, timing)}"
        if pending := response.get("pending"):
            text += f"; waits for {', '.join(call['name'] for call in pending)}"
        self._finished.append(Row("step", now_s, text=text, duration_s=0))

    def _totals(self, result: Result, now_s: float) -> str:
        status = "waits for you" if result.status == "in_progress" else result.status
        reason = f" ({result.reason})" if result.reason else ""
        counts = f"{_count(self.num_steps, 'step')}, {_count(self.num_calls, 'call')}"
        return f"{status}{reason} after {now_s:.2f} s, {counts}: {cost(result.run_usage, result.run_timing)}"


def cost(usage: Usage, timing: Timing) -> str:
    """Tokens given, reused, prefilled and sampled, and where the time went; zeros are left out."""
    reused = usage.input_tokens_details.cached_tokens
    parts = [
        f"{_count(usage.input_tokens, 'token')} in ({reused} reused, {usage.input_tokens - reused} prefilled)",
        f"{usage.output_tokens} out",
    ]
    times = {"prefill": timing.prefill_ms, "sampling": timing.sampling_ms, "tools": timing.client_wait_ms}
    times["hosted tools"] = timing.hosted_tools_ms
    parts += [f"{name} {milliseconds(value)}" for name, value in times.items() if value]
    return ", ".join(parts)


def milliseconds(value: float) -> str:
    """A duration in the unit that reads best."""
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _arguments(written: str) -> str:
    """The model's JSON as keyword arguments; as it is when it is no object."""
    try:
        values = msgspec.json.decode(written or "{}")
    except msgspec.DecodeError:
        return written
    if not isinstance(values, dict):
        return written
    return ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in values.items())


def _title_of(item: dict[str, Any]) -> str:
    """A call's name, and what it was asked: arguments, a text, an action, queries or a program."""
    name = item.get("name") or item["type"].removesuffix("_call")
    if item.get("server_label"):
        name = f"{item['server_label']}.{name}"
    asked = item.get("action") or item.get("queries") or item.get("code")
    if asked is None:
        return f"{name}({_arguments(item.get('arguments') or item.get('input') or '')})"
    return f"{name}({asked if isinstance(asked, str) else msgspec.json.encode(asked).decode()})"


def _is_cut_call(item: dict[str, Any]) -> bool:
    """Whether the step ended while the model wrote a call of the client's."""
    return item["type"] in ("function_call", "custom_tool_call") and item.get("status") == "incomplete"


def _said(error: Any) -> str:
    """What an error of an MCP call says."""
    parts = error.get("content") if isinstance(error, dict) else None
    return "\n".join(str(part.get("text", "")) for part in parts or [])
