"""What a run is made of, and what others may ask of it; nothing here changes it. How it moves is in response.py."""

from typing import Any

from engine.answers import Answers, Batch
from engine.backends.base import StepSpec
from engine.continuation import check_input
from engine.errors import NotFound, RequestError
from engine.events import FinalEvent, ResponseObject
from engine.history import Round, Rounds
from engine.hosted_calls import HostedCalls
from engine.item_style import style_of
from engine.items import Answer, Item
from engine.log import EventLog
from engine.made import Made
from engine.progress import Progress
from engine.request import RunRequest
from engine.response_object import object_of
from engine.sealing import Sealer
from engine.settings import Settings
from engine.status import Status
from engine.tokens import Span
from engine.writer import ItemWriter, MintId


class ResponseState:
    """One run. `log` holds everything a reader may see; `output` the finished items."""

    __slots__ = (
        *("id", "request", "progress", "log", "hosted"),
        *("_answers", "_created_at", "_held", "_joined", "_rounds", "_sealer", "_top_logprobs", "_writer"),
    )

    def __init__(
        self,
        response_id: str,
        request: RunRequest,
        settings: Settings,
        mint_id: MintId,
        now: float,
        before: "ResponseState | None" = None,
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

    # --- how it stands ---

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

    @property
    def made(self) -> list[Made]:
        """The finished items as they are kept."""
        return self._writer.finished

    def _object(self, changes: dict[str, Any]) -> ResponseObject:
        return object_of(self.request.echo, self.id, self._created_at, self.progress, self.output, changes)

    def _expect_in_progress(self) -> None:
        if self.status is not Status.IN_PROGRESS:
            raise ValueError(f"response {self.id} is {self.status.value}")

    # --- what comes next ---

    @property
    def is_held(self) -> bool:
        """Whether it has yet to be given what it begins with."""
        return bool(self._held)

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

    # --- what a client may append ---

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
