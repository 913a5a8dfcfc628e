"""The state machine of one run: one Response from `created` to its end, over any number of sampling steps.

                    step ended, calls unanswered,
                    or kept open for the user
    IN_PROGRESS ───────────────────────────────────▶ PAUSED
        │  ▲                                           │
        │  └───────── last output, or a message ───────┘
        │                                              │
        └▶ COMPLETED · INCOMPLETE · FAILED · CANCELLED ◀┘   (expiry, cancel, superseded, drain)

Who may do what: the loop feeds deltas and ends steps; the client appends, through `check` and `commit`, at any time
while the run is open; anybody may finish it. Every method checks before it changes anything. Rules that live here and
nowhere else: one id, one rising sequence_number and output_index for the whole run; exactly one terminal event per
step; what ends a run while nobody samples is logged as *unsolicited*, to be read on resume but not sent to a reader
that waits at a pause.
"""

from typing import Final, assert_never

import msgspec

from engine.answers import Batch, OpenCall
from engine.backends.base import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    ReasoningDelta,
    StepEnd,
    TextDelta,
    ToolChoice,
)
from engine.errors import EngineError
from engine.events import (
    ErrorDetails,
    IncompleteDetails,
    ResponseCreated,
    ResponseDone,
    ResponseInjected,
    ResponseInProgress,
    ResponseTokens,
)
from engine.hosted_calls import in_place
from engine.items import Compaction, Item, ItemStatus
from engine.made import Made
from engine.resolving import open_window, seal_window
from engine.response_object import FINAL_EVENTS, pause_of
from engine.response_state import ResponseState
from engine.safety.verdict import Finding
from engine.status import Reason, Status
from engine.tokens import Span
from engine.usage import Timing, Usage

NUM_OPENING: Final = 2  # events that a run begins with


class Response(ResponseState):
    """One run, as it moves."""

    __slots__ = ()

    # --- the loop's side ---

    def start(self) -> None:
        """Log `created` and `in_progress`."""
        self._expect_in_progress()
        if self.log.next:
            raise ValueError(f"response {self.id} has started")
        created = self._object({})
        self.log.append(ResponseCreated(sequence_number=0, response=created))
        self.log.append(ResponseInProgress(sequence_number=1, response=created))
        # One object for all three; and the sequence has the items, which may be a long history.
        self.request = msgspec.structs.replace(self.request, items=[], echo=created)

    def feed(self, delta: Delta) -> None:
        """Log what one delta means. Raises BackendError for a call that no item can carry."""
        self._expect_in_progress()
        match delta:
            case TextDelta(text, logprobs):
                self._writer.text(text, logprobs)
            case ReasoningDelta(text):
                self._writer.reasoning(text)
            case CallStart():
                self._start_call(delta)
            case CallDelta(text):
                self._writer.call_text(text)
            case CallEnd():
                self._end_call()
            case StepEnd():
                raise ValueError("a step ends by end_step")
            case _:
                assert_never(delta)

    def _start_call(self, start: CallStart) -> None:
        tool = self.hosted.tool_of(start)
        if tool is None:
            self._writer.start_call(start)
        elif tool.needs_approval:
            self._writer.start_call(CallStart("mcp_approval_request", tool.name, server_label=tool.namespace))
        else:
            self._writer.start_hosted_call(tool)
        self.progress.called()

    def _end_call(self) -> None:
        if self._writer.hosted.is_in_call:
            self.hosted.end_call(self.progress)
        else:
            call = self._writer.end_call()
            self._answers.called(call, is_hosted=self.hosted.is_to_be_approved(call))

    def begin_approved(self) -> None:
        """Announce the hosted calls that the client has approved since."""
        self.hosted.begin_approved(self.progress)

    def start_compaction(self) -> None:
        """The context is being made shorter."""
        self._expect_in_progress()
        self._writer.start_compaction()

    def end_compaction(self, window: list[Item], usage: Usage) -> None:
        """From here on these items stand for everything before. `usage` is what it took to sum it up."""
        self._expect_in_progress()
        assert self._sealer is not None
        self._writer.end_compaction(seal_window(window, self._sealer))
        self.progress.add(usage)
        self._rounds.replace(window, self._writer.finished)

    def tokens_joined(self, spans: list[Span]) -> None:
        """Note token ids that are new in the context; they are logged when the step ends, after its last item."""
        self._expect_in_progress()
        self._joined += spans

    def end_step(self, end: StepEnd, timing: Timing, now: float, *, is_steered: bool = False) -> None:
        """Close the step: pause, finish, or stay IN_PROGRESS because all that it needs has arrived already.

        is_steered: it was interrupted for something the user said.
        """
        self._expect_in_progress()
        is_whole = end.reason == "stop" and not is_steered
        self._close_item(
            "completed" if is_whole else "incomplete",
            is_final=is_whole and not self._answers.open and not self.progress.messages,
        )
        self._log_joined()
        self.progress.num_steps += 1
        self.progress.step_ended(end.usage, timing, is_whole=end.reason != "content_filter")
        if end.reason != "stop":
            self._finish(Status.INCOMPLETE, now, incomplete_details=IncompleteDetails.of(end.reason, end.blocked_by))
        elif self.hosted.gives_up(self.progress):
            self._finish(Status.INCOMPLETE, now, incomplete_details=IncompleteDetails("max_tool_calls"))
        elif self._answers.open or self.progress.messages:
            if self._answers.unanswered():
                self._stop_for_calls(now)
        elif is_steered:
            self._finish(Status.INCOMPLETE, now, incomplete_details=IncompleteDetails("steered"))
        elif self.request.echo.keep_open:
            self._pause()
        else:
            self._finish(Status.COMPLETED, now)

    def complete_without_sampling(self, usage: Usage, timing: Timing, now: float) -> None:
        """End a run that was only to be prepared (`generate: false`)."""
        self._expect_in_progress()
        self.progress.step_ended(usage, timing)
        self._finish(Status.COMPLETED, now)

    def hold(self, items: list[Item], approvals: list[OpenCall]) -> None:
        """Begin with these items once the hosted calls that they decide on have run."""
        self._held = items
        self._answers.restore([*self._answers.open.values(), *approvals], {}, [])

    def take_new_items(self) -> list[Item]:
        """What the client gave for the next step: outputs in the order of the calls, then messages."""
        self._expect_in_progress()
        held, self._held = self._held, []
        outputs = self._answers.take()
        items = [*(in_place(held, outputs) if held else outputs), *self.progress.take_messages()]
        self._rounds.give(items)
        return items

    def end(self, reason: Reason, now: float, blocked_by: Finding | None = None) -> None:
        """End the run: incomplete, or cancelled in the background. At a pause it is unsolicited, unless `cancelled`."""
        if not self.is_open:
            return
        if reason != "cancelled":
            self._mark_unsolicited()
        self._close_item("incomplete")
        self.progress.forget_step()
        if reason == "cancelled" and self.request.echo.background:
            self._finish(Status.CANCELLED, now)
        else:
            self._finish(Status.INCOMPLETE, now, incomplete_details=IncompleteDetails.of(reason, blocked_by))

    def fail(self, error: EngineError, now: float) -> None:
        """End the run as failed, with what the client may know of the error."""
        if not self.is_open:
            return
        self._mark_unsolicited()
        self._close_item("incomplete")
        self.progress.forget_step()
        self._finish(Status.FAILED, now, error=ErrorDetails.of(error))

    def abandon(self, error: EngineError, now: float) -> None:
        """End the run as failed when it cannot be ended otherwise: what its items are now is not looked at."""
        if self.is_open:
            self._finish(Status.FAILED, now, error=ErrorDetails.of(error))

    # --- the client's side ---

    def commit(self, batch: Batch, choice: ToolChoice | None = None) -> bool:
        """Take in a checked append. True when the paused run goes on."""
        if not self.is_open:
            raise ValueError(f"response {self.id} is {self.status.value}")
        self._answers.commit(batch)
        self.progress.messages += batch.messages
        if self.request.lifecycle == "inject":
            self.log.append(ResponseInjected(sequence_number=self.log.next, response_id=self.id))
        if choice is not None:
            self.progress.next_choice = choice
        has_new = bool(self._answers.open or self.progress.messages)
        if self.status is Status.PAUSED and has_new and not self._answers.unanswered():
            self.progress.status = Status.IN_PROGRESS
            return True
        return False

    # --- the journal's side ---

    def restore_round(self, given: list[Item], made: list[Made]) -> None:
        """Have been given these items, if any, and have made those; log and progress are restored by themselves."""
        if given:
            self._rounds.give(given)
        for entry in made:
            item = self._writer.restore(entry)
            if isinstance(item, Compaction) and self._sealer is not None:
                self._rounds.replace(open_window(item, self._sealer), self._writer.finished)
        self._rounds.make(self._writer.finished)

    def restore_end(
        self, completed_at: int, error: ErrorDetails | None, incomplete_details: IncompleteDetails | None
    ) -> None:
        """Log the final event again, once all that it tells of is restored."""
        self._finish(self.status, completed_at, error=error, incomplete_details=incomplete_details)

    # --- moves ---

    def _mark_unsolicited(self) -> None:
        if self.status is Status.PAUSED:
            self.progress.unsolicited_from = self.log.next

    def _log_joined(self) -> None:
        spans, self._joined = self._joined, []
        if spans:
            self.log.append(ResponseTokens(sequence_number=self.log.next, response_id=self.id, spans=spans))

    def _close_item(self, status: ItemStatus, *, is_final: bool = False) -> None:
        self._writer.close(status, is_final=is_final)
        self._writer.hosted.close()
        self.progress.is_step_whole = False
        self._rounds.make(self._writer.finished)

    def _stop_for_calls(self, now: float) -> None:
        """The client is to answer: as an answer to this run, or with a run that goes on from it."""
        if self.request.lifecycle in ("append", "inject"):
            self._pause()
        else:
            self._finish(Status.COMPLETED, now)

    def _pause(self) -> None:
        so_far = self.progress
        so_far.status = Status.PAUSED
        if self.request.lifecycle == "inject":  # its clients know from the call that it is their turn
            return
        pause = pause_of(self.id, so_far, self._answers.unanswered())
        self.log.append(ResponseDone(sequence_number=self.log.next, response=pause))

    def _finish(
        self,
        status: Status,
        now: float,
        *,
        error: ErrorDetails | None = None,
        incomplete_details: IncompleteDetails | None = None,
    ) -> None:
        self.progress.status = status
        changes = {
            "completed_at": int(now) if status is Status.COMPLETED else None,
            "error": error,
            "incomplete_details": incomplete_details,
        }
        self.log.append(FINAL_EVENTS[status](sequence_number=self.log.next, response=self._object(changes)))
