"""The state machine of the client: one run over any number of connections. No I/O.

    OPENING ──created──▶ RUNNING ──done, nothing pending──▶ WAITING ──say──▶ RUNNING
       └──────────────────────┴───────────────┬────────────────┘
                                              ▼ completed, incomplete, failed, error
                                            ENDED

The driver tells it what happened (`connected`, `receive`) and what the user wants (`outbox`, `say`, `cancel`), sends
what `next_frame` gives until that is None, and acts on the effects that `receive` returns. What is decided here and
nowhere else:

- Events are shown once and in order: a number that was seen is dropped, so a replay may overlap.
- The server answers frames in the order they were sent, so acknowledgements and errors belong to the oldest frame in
  flight. What was in flight when a connection broke may or may not have arrived. It is sent again on the next
  connection, but only while the run is paused or when `response.done` still asks for it: sent while the run samples,
  it could meet a run that has just completed. Until then nothing else is said, since parts must stay in order.
- Before `response.created` nothing was shown and no tool ran, so a broken connection simply creates anew.
- A server that was started anew may set the run back: what we saw beyond its last stored event never was, and what we
  gave since may be gone. Calls that never were are dropped, what it still waits for is given again. A turn that has
  been shown as over cannot be taken back: then the run fails.
- A `response.done` that crossed our answer lists as pending what is answered: it is no turn's end, and needs no action.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from engine.client_outbox import Outbox, Outgoing, key_of, shortened, user_message
from engine.client_wire import ConnectionLost, Event, RunFailed
from engine.items import ANSWER_TYPES, Message
from engine.usage import Timing, Usage

_ENCODER: Final = msgspec.json.Encoder()


class Phase(Enum):
    """Where the run stands, as far as the client knows."""

    OPENING = "opening"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run, or of a turn of a run that is kept open.

    `status`: "completed", "incomplete" (see `reason`), or "in_progress" for a run that waits for the next message.
    `text` is the turn's last message; `output` holds every item the model made in the run, as sent by the server.
    `usage` and `timing` are the last step's, `run_usage` and `run_timing` the run's; zero where the server is silent.
    """

    id: str
    status: str
    text: str
    output: list[Event]
    usage: Usage = Usage()
    run_usage: Usage = Usage()
    timing: Timing = Timing()
    run_timing: Timing = Timing()
    reason: str | None = None


# --- effects: what the driver has to do ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Show:
    """Give the event to the user."""

    event: Event


@dataclass(frozen=True)
class StartCall:
    """Run the tool that this item calls."""

    item: Event


@dataclass(frozen=True)
class DropCalls:
    """Forget the tools that run for these calls; they were never made."""

    keys: frozenset[str]


@dataclass(frozen=True)
class EndTurn:
    """The run ended, or waits for the next message."""

    result: Result


@dataclass(frozen=True)
class Fail:
    """Tell the user that the run failed."""

    error: RunFailed


@dataclass(frozen=True)
class Reconnect:
    """Drop this connection and open another one."""

    reason: ConnectionLost


Effect = Show | StartCall | DropCalls | EndTurn | Fail | Reconnect


@dataclass(frozen=True)
class _Sent:
    """A frame whose acknowledgement is due; `items` for an append."""

    type: str
    items: Sequence[Outgoing] = ()
    is_resent: bool = False
    is_shortened: bool = False


class RunState:
    """One run. `create` holds the fields of `response.create` apart from its type."""

    def __init__(self, create: dict[str, Any]) -> None:
        self.phase = Phase.OPENING
        self.response_id: str | None = None
        self.last_seen = -1
        self.outbox = Outbox()
        self.output: list[Event] = []
        self._create = create
        self._is_resumable = bool(create.get("resumable"))
        self._lane = {"stream_id": create["stream_id"]} if "stream_id" in create else {}
        self._seen_at: list[int] = []  # the event of each item in `output`
        self._turn_start = 0
        self._turn_seen_at = -1  # the event that ended the last turn
        self._said: Message | None = None  # what began this one
        self._revival: str | None = None
        self._in_flight: deque[_Sent] = deque()
        self._again: deque[_Sent] = deque()
        self._has_opened = False
        self._is_held = False
        self._awaits_pause = False
        self._wants_cancel = False
        self._has_sent_cancel = False
        self._refusal: RunFailed | None = None  # of an append; the run is cancelled, and its end told as this

    @property
    def can_reconnect(self) -> bool:
        """Whether another connection can carry on."""
        return self.phase is not Phase.ENDED and (self.response_id is None or self._is_resumable)

    # --- what happened, what is wanted ---

    def connected(self) -> None:
        """A new connection is there: it starts with create or resume, then with what was in flight."""
        unacknowledged = [sent for sent in self._in_flight if sent.type == "response.append"]
        self._again = deque([*unacknowledged, *self._again])
        self._in_flight.clear()
        self._has_opened = self._has_sent_cancel = self._awaits_pause = False
        self._is_held = self.response_id is not None

    def say(self, text: str) -> None:
        """Give the next user message. Raises ValueError while the run does not wait for one."""
        if self.phase is not Phase.WAITING:
            raise ValueError(f"run {self.response_id} is {self.phase.value}")
        self.phase = Phase.RUNNING
        self._turn_start = len(self.output)
        self._said = user_message(text)
        self.outbox.add(self._said)

    def cancel(self) -> None:
        """Ask the server to end the run, as soon as its id is known."""
        self._wants_cancel = True

    def fail(self) -> None:
        """Give up, whatever the server thinks of the run."""
        self.phase = Phase.ENDED

    # --- frames out ---

    def next_frame(self) -> str | None:
        """The next frame to send on this connection, or None when there is nothing to say now."""
        if self.phase is Phase.ENDED:
            return None
        if not self._has_opened:
            return self._open()
        if self._is_held or self.response_id is None:
            return None
        if self._wants_cancel and not self._has_sent_cancel:
            self._has_sent_cancel = True
            return self._encode("response.cancel")
        if self._awaits_pause or self._refusal is not None:
            return None
        if self._again:
            again = self._again.popleft()
            return self._append(_Sent(again.type, again.items, is_resent=True, is_shortened=again.is_shortened))
        if items := self.outbox.take():
            return self._append(_Sent("response.append", items))
        return None

    def _open(self) -> str:
        self._has_opened = True
        if self.response_id is None:
            self._in_flight.append(_Sent("response.create"))
            return _ENCODER.encode({"type": "response.create", **self._create}).decode()
        self._in_flight.append(_Sent("response.resume"))
        known = {} if self._revival is None else {"revival": self._revival}
        return self._encode("response.resume", starting_after=self.last_seen, **known)

    def _append(self, sent: _Sent) -> str:
        self._in_flight.append(sent)
        return self._encode("response.append", input=sent.items)

    def _encode(self, kind: str, **fields: Any) -> str:
        """A frame about the run, on its lane."""
        return _ENCODER.encode({"type": kind, "response_id": self.response_id, **self._lane, **fields}).decode()

    # --- events in ---

    def receive(self, event: Event) -> list[Effect]:
        """What an event means. Events after the end mean nothing."""
        if self.phase is Phase.ENDED:
            return []
        match event["type"]:
            case "error":
                return self._refused(event)
            case "response.append.accepted":
                self._acknowledged("response.append")
                return []
            case "response.resume.accepted":
                return self._resumed(event)
            case _:
                return self._numbered(event)

    def _numbered(self, event: Event) -> list[Effect]:
        number = event.get("sequence_number")
        if number is None:
            return [Show(event)]
        if number <= self.last_seen:
            return []
        self.last_seen = number
        return [Show(event), *self._advance(event)]

    def _advance(self, event: Event) -> list[Effect]:
        match event["type"]:
            case "response.created":
                self.response_id = event.response.id
                self.outbox.is_kept = bool(event.response.get("store"))
                self.phase = Phase.RUNNING
                self._acknowledged("response.create")
            case "response.output_item.done":
                self.output.append(event.item)
                self._seen_at.append(self.last_seen)
                if _is_client_call(event.item):
                    return [StartCall(event.item)]
            case "response.done":
                pending = event.response.get("pending") or []
                self._paused(pending)
                if not pending:
                    self.phase, self._turn_seen_at = Phase.WAITING, self.last_seen
                    return [EndTurn(self._result(event.response))]
            case "response.completed" | "response.incomplete" | "response.failed" if self._refusal is not None:
                self.phase = Phase.ENDED
                return [Fail(self._refusal)]
            case "response.completed" | "response.incomplete":
                self.phase = Phase.ENDED
                return [EndTurn(self._result(event.response))]
            case "response.failed":
                self.phase = Phase.ENDED
                return [Fail(_failure(event.response.get("error") or {}, 500))]
        return []

    def _resumed(self, event: Event) -> list[Effect]:
        """Decide about what is in doubt; a message, unlike an answer, would count twice."""
        self._acknowledged("response.resume")
        self._is_held = False
        if (revival := event.get("revival")) is not None and revival != self._revival:
            self._revival = revival
            return self._set_back(event)
        is_paused = event.get("status") == "paused"
        has_missed = event.get("last_sequence_number", self.last_seen) != self.last_seen
        if not is_paused or has_missed:
            self._again = deque(sent for sent in self._again if not any(isinstance(i, Message) for i in sent.items))
        self._awaits_pause = bool(self._again) and not is_paused
        return []

    def _set_back(self, event: Event) -> list[Effect]:
        """Go on from the last event that the server has stored, with what it wants of us."""
        last = event["starting_after"]
        if last < self._turn_seen_at:
            self.phase = Phase.ENDED
            return [Fail(RunFailed("The server has lost a part of the run that was over.", code="turn_lost"))]
        num_left = bisect_right(self._seen_at, last)
        dropped = frozenset(_key(item) for item in self.output[num_left:] if _is_client_call(item))
        del self.output[num_left:], self._seen_at[num_left:]
        self.last_seen = min(self.last_seen, last)
        self._again.clear()
        self.outbox.drop(dropped)
        pending = event.get("still_pending") or []
        self.outbox.give_again(pending)
        waits_for_us = event.get("status") == "paused" and event.get("last_sequence_number") == self._turn_seen_at
        if waits_for_us and self._said is not None and self.phase is Phase.RUNNING:
            self.outbox.say_again(self._said)
        return [Show(event), DropCalls(dropped)]

    def _paused(self, pending: list[dict[str, Any]]) -> None:
        """A step ended: of what is in doubt, what the server does not wait for has arrived."""
        if not self._awaits_pause:
            return
        self._awaits_pause = False
        keys = {call.get("answer_key") for call in pending}
        again = self._again
        self._again = deque()
        for sent in again:
            if items := [item for item in sent.items if key_of(item) in keys]:
                self._again.append(_Sent(sent.type, items, is_shortened=sent.is_shortened))

    def _acknowledged(self, kind: str) -> None:
        if self._in_flight and self._in_flight[0].type == kind:
            self._in_flight.popleft()

    def _refused(self, event: Event) -> list[Effect]:
        """An error frame: the answer to the oldest frame in flight or, when there is none, the run's end."""
        error, status = event.get("error") or {}, event.get("status") or 500
        code = error.get("code")
        if code == "websocket_connection_limit_reached":
            return [Reconnect(ConnectionLost(error.get("message") or code, code=code))]
        sent = self._in_flight.popleft() if self._in_flight else None
        if sent and sent.type == "response.resume" and (status >= 500 or status == 429):
            return [Reconnect(ConnectionLost(error.get("message") or "the server is not ready", code=code))]
        # The run may have ended since; the replay that follows says how.
        is_late = (sent.is_resent and sent.type == "response.append") if sent else self._has_sent_cancel
        if status == 404 and is_late:
            return []
        if sent and sent.items and code == "context_length_exceeded" and not sent.is_shortened:
            self._again.append(_Sent(sent.type, [shortened(item) for item in sent.items], is_shortened=True))
            return []
        if sent and sent.type == "response.append" and status != 404 and self._refusal is None:
            # The run is there still, with what it has set aside of a budget.
            self._refusal = _failure(error, status)
            self.cancel()
            return []
        self.phase = Phase.ENDED
        return [Fail(self._refusal or _failure(error, status))]

    # --- results ---

    def _result(self, response: Event) -> Result:
        timing = response.get("timing") or {}
        return Result(
            id=response.get("id") or self.response_id or "",
            status=response.get("status") or "in_progress",
            text=message_text(self.output[self._turn_start :]),
            output=list(self.output),
            usage=msgspec.convert(response.get("usage") or {}, Usage),
            run_usage=msgspec.convert(response.get("run_usage") or response.get("usage") or {}, Usage),
            timing=msgspec.convert(timing.get("step") or {}, Timing),
            run_timing=msgspec.convert(timing.get("run") or {}, Timing),
            reason=(response.get("incomplete_details") or {}).get("reason"),
        )


def message_text(output: Sequence[Event]) -> str:
    """The text of the last message among these items; empty when there is none."""
    for item in reversed(output):
        if item["type"] == "message":
            parts = item.get("content") or []
            return "".join(part.get("text") or part.get("refusal") or "" for part in parts)
    return ""


def _is_client_call(item: Event) -> bool:
    """Whether the client is to run it. Never one that was cut: half a statement may do what the whole one would not."""
    is_hosted = item["type"] == "tool_search_call" and item.get("execution") == "server"
    return item["type"] in ANSWER_TYPES and not is_hosted and item.get("status") != "incomplete"


def _key(call: Event) -> str:
    return call.get("call_id") or call.get("id") or ""


def _failure(error: dict[str, Any], status: int) -> RunFailed:
    message = error.get("message") or "the run failed"
    return RunFailed(message, code=error.get("code"), status=status, param=error.get("param"))
