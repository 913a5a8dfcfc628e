"""One step of a scenario, worked out before it starts: every delta, when each is due, and how the step ends.

Times are seconds from the start of the step, so a driver that is late can catch up and never drifts.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, Reason, ReasoningDelta, TextDelta, ToolChoice
from engine.backends.pieces import fill, split_pieces
from engine.backends.scenario_values import Fail, Pace, ScriptedCall, ScriptedStep, Speech, Wait
from engine.backends.script_calls import ready_call
from engine.errors import BackendError
from engine.toolspec import Tool


class Limit(msgspec.Struct, frozen=True):
    """At most so many tokens; `ending` says what it is when the limit is met."""

    num_tokens: float
    ending: Reason | BackendError


NO_LIMIT = Limit(float("inf"), "stop")


class Take(msgspec.Struct, frozen=True):
    """What a step emits. `dues` is None when nothing has to be waited for, else one time per delta.

    `ending` is the reason of the StepEnd, or the error that comes in its place, due at `end_due` (may be infinite).
    """

    deltas: list[Delta]
    dues: list[float] | None
    ending: Reason | BackendError
    end_due: float

    def count(self, num_deltas: int) -> tuple[int, int]:
        """Tokens among the first `num_deltas` deltas: all, and those of reasoning. Begin and end of a call are none."""
        kinds = [type(delta) for delta in self.deltas[:num_deltas]]
        reasoning = kinds.count(ReasoningDelta)
        return reasoning + kinds.count(TextDelta) + kinds.count(CallDelta), reasoning


def take_step(
    step: ScriptedStep, values: Mapping[str, str], tools: ListOf[Tool], choice: ToolChoice, limit: Limit
) -> Take:
    """Work out a step. Calls that `choice` forbids are left out; `required` adds a call to a step that has none.

    A call that the client's tools cannot take makes a Take that ends with the BackendError, after what comes before.
    """
    taker = _Taker(step.pace, limit)
    for part in _parts(step, choice):
        if taker.ending is not None:
            break
        match part:
            case Speech():
                taker.say(part.deltas or _cut(part, values))
            case Wait():
                taker.wait(part.seconds)
            case Fail():
                taker.fail(part)
            case ScriptedCall():
                taker.call(part, values, tools, choice)
    return taker.take(step)


def _parts(step: ScriptedStep, choice: ToolChoice) -> Iterable[Speech | Wait | Fail | ScriptedCall]:
    # A failure after some tokens concerns the whole step, wherever it is written.
    yield from (part for part in step.parts if isinstance(part, Fail) and part.after_tokens is not None)
    yield from (part for part in step.parts if not (isinstance(part, Fail) and part.after_tokens is not None))
    if choice.mode == "required" and not any(isinstance(part, ScriptedCall) for part in step.parts):
        yield ScriptedCall(where="tool_choice: required")


def _cut(speech: Speech, values: Mapping[str, str]) -> list[Delta]:
    return [speech.make(piece) for piece in split_pieces(fill(speech.template or "", values))]


class _Taker:
    """Builds a Take. `_last` is when the latest delta is due, `_next` when the next token may come."""

    def __init__(self, pace: Pace, limit: Limit) -> None:
        self.ending: Reason | BackendError | None = None
        self._limit = limit
        self._gap = 1 / pace.tokens_per_second if pace.tokens_per_second else 0.0
        self._last = self._next = pace.ttft_ms / 1000
        self._num_tokens = 0
        self._deltas: list[Delta] = []
        self._dues: list[float] = []
        self._late_failure: BackendError | None = None

    def say(self, deltas: ListOf[Delta]) -> None:
        room = self._limit.num_tokens - self._num_tokens
        if len(deltas) > room:
            deltas = deltas[: int(room)]
            self.ending = self._limit.ending
        if not deltas:
            return
        start, gap = self._next, self._gap
        self._deltas += deltas
        self._dues += [start + index * gap for index in range(len(deltas))]
        self._num_tokens += len(deltas)
        self._last = self._dues[-1]
        self._next = start + len(deltas) * gap

    def wait(self, seconds: float) -> None:
        self._last += seconds
        self._next += seconds

    def fail(self, part: Fail) -> None:
        error = BackendError(part.message, code=part.code, status=part.status)
        if part.after_tokens is None:
            self.ending = error
            return
        self._late_failure = error
        if part.after_tokens <= self._limit.num_tokens:
            self._limit = Limit(part.after_tokens, error)

    def call(self, call: ScriptedCall, values: Mapping[str, str], tools: ListOf[Tool], choice: ToolChoice) -> None:
        try:
            ready = ready_call(call, tools, choice, values)
        except BackendError as error:
            self.ending = error
            return
        if ready is None:
            return
        if self._num_tokens >= self._limit.num_tokens:
            self.ending = self._limit.ending
            return
        self._mark(ready.start, self._next)
        self.say([CallDelta(piece) for piece in split_pieces(ready.text)])
        if self.ending is None:
            self._mark(CallEnd(), self._last)

    def _mark(self, delta: CallStart | CallEnd, due: float) -> None:
        self._last = due
        self._deltas.append(delta)
        self._dues.append(due)

    def take(self, step: ScriptedStep) -> Take:
        ending = self.ending or self._late_failure or step.end
        is_paced = self._last > 0
        return Take(self._deltas, self._dues if is_paced else None, ending, self._last)
