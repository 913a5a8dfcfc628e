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

from typing import Any, Final, assert_never

import msgspec

from engine.answers import Answers, Batch, OpenCall
from engine.backends.base import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    ReasoningDelta,
    StepEnd,
    StepSpec,
    TextDelta,
    ToolChoice,
)
from engine.continuation import check_input
from engine.errors import EngineError, NotFound, RequestError
from engine.events import (
    ErrorDetails,
    FinalEvent,
    IncompleteDetails,
    ResponseCreated,
    ResponseDone,
    ResponseInjected,
    ResponseInProgress,
    ResponseObject,
    ResponseTokens,
)
from engine.history import Round, Rounds
from engine.hosted_calls import HostedCalls, in_place
from engine.item_style import style_of
from engine.items import Answer, Compaction, Item, ItemStatus
from engine.log import EventLog
from engine.made import Made
from engine.progress import Progress
from engine.request import RunRequest
from engine.resolving import open_window, seal_window
from engine.response_object import FINAL_EVENTS, object_of, pause_of
from engine.safety.verdict import Finding
from engine.sealing import Sealer
from engine.settings import Settings
from engine.status import Reason, Status
from engine.tokens import Span
from engine.usage import Timing, Usage
from engine.writer import ItemWriter, MintId

NUM_OPENING: Final = 2  # events that a run begins with


class Response:
    """One run. `log` holds everything a reader may see; `output` the finished items."""

    def __init__(
        self,
        response_id: str,
        request: RunRequest,
        settings: Settings,
        mint_id: MintId,
        now: float,
        before: "Response | None" = None,
        sealer: Sealer | None = None,
        *,
        keeps_items: bool = False,
    ) -> None:
        """before: the run that this one goes on from. sealer: for a request that wants its reasoning sealed.

        keeps_items: also if such a run has no need of them.
        """
        self.id = response_id
        self._sealer = sealer
        self.request = request
        self.progress = Progress(choice=request.tool_choice)
        self.log = EventLog(settings.max_log_events)
        self._answers = Answers(settings.max_streamed_output_chars, before.answers if before else None)
        self._writer = ItemWriter(self.log, mint_id, self._answers.made, style_of(request, sealer))
        limit = min(request.echo.max_tool_calls or settings.max_hosted_calls, settings.max_hosted_calls)
        self.hosted = HostedCalls(request.tools, self._writer.hosted, self._answers, limit)
        is_kept = keeps_items or request.keeps_items
        self._rounds = Rounds(before.round if before else None, request.items, is_kept=is_kept)
        self._created_at = int(now)
        self._top_logprobs = request.top_logprobs
        if self._top_logprobs is None and settings.record_logprobs:
            self._top_logprobs = 0  # for the token log; the client is shown none
        self._joined: list[Span] = []
        self._held: list[Item] = []

    # --- what others ask ---

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.progress.status

    @property
    def is_open(self) -> bool:
        """Whether the run can still go on."""
        return self.status.is_open

    @property
    def is_stored(self) -> bool:
        """Whether it is kept beyond the server's memory."""
        return self.request.echo.store

    @property
    def output(self) -> list[Item]:
        """The finished items of the whole run."""
        return self._writer.output

    @property
    def round(self) -> Round | None:
        """Its newest round and all before it, if its items are kept."""
        return self._rounds.newest

    @property
    def answers(self) -> Answers:
        """Its calls and what answered them, for a run that goes on from it."""
        return self._answers

    @property
    def can_be_interrupted(self) -> bool:
        """Whether the step may stop here: a call, once begun, is carried to its end."""
        return not (self._answers.open or self._writer.is_in_call)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it is over and nothing cut it short, so that its last step is whole."""
        return not self.is_open and self.progress.is_step_whole

    @property
    def can_go_on(self) -> bool:
        """Whether another run may go on from this one: it has come to an end that its items can follow."""
        return self.status in (Status.COMPLETED, Status.INCOMPLETE)

    @property
    def num_sampled(self) -> int:
        """Output tokens of the whole run so far."""
        return self.progress.run_usage.output_tokens

    def step_spec(self) -> StepSpec:
        """How the next step is to be sampled.

        A forced tool choice holds until the next call and then falls back to auto, or the run would never end; an
        append may set another one for the steps after it.
        """
        limit = self.request.echo.max_output_tokens
        max_tokens = None if limit is None else max(limit - self.num_sampled, 0)
        choice = self.hosted.choice(self.progress.choice, self.progress)
        return StepSpec(choice, max_tokens, top_logprobs=self._top_logprobs)

    def snapshot(self) -> ResponseObject:
        """The response object as of now, the final one when the run is over."""
        if not self.is_open:
            final = self.log.read(self.log.next - 1)
            assert isinstance(final, FinalEvent)
            return final.response
        return self._object({})

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

    @property
    def is_held(self) -> bool:
        """Whether it has yet to be given what it begins with."""
        return bool(self._held)

    def take_new_items(self) -> list[Item]:
        """What the client gave for the next step: outputs in the order of the calls, then messages."""
        self._expect_in_progress()
        held, self._held = self._held, []
        outputs = self._answers.take()
        items = [*(in_place(held, outputs) if held else outputs), *self.progress.take_messages()]
        self._rounds.give(items)
        return items

    def foreseen(self) -> list[Answer]:
        """What the next step will begin with, as far as it is known at a pause; the last output may still grow."""
        return self._answers.foreseen()

    def peek_new_items(self, batch: Batch) -> list[Item]:
        """What `take_new_items` would give after `batch`, as far as it has arrived."""
        outputs = [
            entry.given or (None if entry.is_hosted else batch.answers.get(key))
            for key, entry in self._answers.open.items()
        ]
        return [*(output for output in outputs if output is not None), *self.progress.messages, *batch.messages]

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

    # --- the client's side ---

    def check(self, items: list[Item]) -> Batch:
        """What an append of these items would do. Raises RequestError; nothing changes either way."""
        if not self.is_open:
            raise NotFound(f"Response with id '{self.id}' not found.")
        batch = self._answers.check(items)
        if batch.messages and not (batch.answers or batch.parts or batch.repeated):
            if waiting := self._answers.unanswered():
                raise RequestError(f"No tool output found for function call {waiting[0].answer_key}.", param="input")
            if not self.request.echo.keep_open:
                raise RequestError("A message can be appended only to a run that is kept open.", param="input")
        return batch

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

    def new_items(self, items: list[Item]) -> list[Item]:
        """The items but for those of this run that the client sent back, and answers it gave before.

        Raises RequestError for an output of a call that this run never made.
        """
        if self._answers.open:  # a run of a chain, which its calls have ended
            return check_input(items, self._answers).items
        return self._answers.new_items(items)

    def still_pending(self) -> list[str]:
        """The keys of calls without an answer, in call order."""
        return [call.answer_key for call in self._answers.unanswered()]

    # --- the journal's side ---

    @property
    def made(self) -> list[Made]:
        """The finished items as they are kept."""
        return self._writer.finished

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

    def _expect_in_progress(self) -> None:
        if self.status is not Status.IN_PROGRESS:
            raise ValueError(f"response {self.id} is {self.status.value}")

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

    def _object(self, changes: dict[str, Any]) -> ResponseObject:
        return object_of(self.request.echo, self.id, self._created_at, self.progress, self.output, changes)
