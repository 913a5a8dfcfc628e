"""A run's gate as its loop sees it: in the place of the sequence, with the same deltas, a little later.

Sampling, classifying in this process and asking judges overlap: the loop's task waits for the model's next deltas and
for verdicts at the same time, whichever comes first. No task is started for that; a judge calls back.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from engine.backends.base import Delta, Sequence, StepEnd
from engine.clock import now_ms
from engine.errors import RequestError, ServerError
from engine.safety.gate import Gate
from engine.safety.judge import Judge
from engine.safety.policies import Scores
from engine.safety.stretch import Question
from engine.safety.verdict import Finding, Verdict

log = logging.getLogger(__name__)


class Looked(msgspec.Struct, frozen=True):
    """What came of looking at something that a step is to be given: nothing stops it so far."""

    findings: list[Finding] = []
    questions: list[Question] = []
    took_ms: float = 0.0


@dataclass
class _Asked:
    judge: Judge
    deadline: float
    number: int = 0


class Guard:
    """One run's gate and what it waits for. Used by the run's task, but for `took` and `close`."""

    def __init__(self, gate: Gate, judges: Mapping[str, Judge], timeout_s: float) -> None:
        """judges: by their models. timeout_s: for each answer of theirs."""
        # Of the sequence's log, None for all: what is held back as text is not for anybody's eyes there either.
        self.num_tokens_shown: int | None = None
        self._gate = gate
        self._judges = judges
        self._timeout_s = timeout_s
        self._asked: dict[Question, _Asked] = {}
        self._waiting: trio.CancelScope | None = None
        self._sequence: Sequence | None = None
        self._end: StepEnd | None = None
        self._cleared: list[Delta] = []
        self._took_ms = 0.0
        self._took_next_ms = 0.0

    # --- what a step is given ---

    def took(self, looked: Looked) -> None:
        """What was looked at is to be given to the next step."""
        self._took_next_ms += looked.took_ms
        self._gate.give(looked.findings, looked.questions)
        for question in looked.questions:
            self._ask(question)

    async def wait_settled(self) -> Finding | None:
        """Wait for all verdicts, when no step follows. What blocks something made, if anything does.

        Raises RequestError, ServerError.
        """
        self._gate.begin_step()
        while self._gate.stopped_by is None and self._gate.open_questions:
            await self._wait()
        found = self._gate.stopped_by
        if found is not None and not _ends_quietly(found):
            raise _refusal(found)
        return found

    async def weigh(self, summary: str) -> Finding | None:
        """Look at a summary that is to take the context's place. What blocks it, if anything does.

        Raises RequestError, ServerError, as `wait_settled` does.
        """
        self._gate.weigh(summary)
        self._ask_all()
        return await self.wait_settled()

    # --- in the place of the sequence ---

    def begin_step(self, sequence: Sequence) -> None:
        """The sequence has started a step."""
        self._gate.begin_step()
        self._sequence, self._end = sequence, None
        self._took_ms, self._took_next_ms = self._took_next_ms, 0.0
        self.num_tokens_shown = sequence.tokens.total

    async def next_deltas(self) -> list[Delta]:
        """What the sequence's would give, as far as it may go out: empty when the model has gone on, and is held back.

        When something made is blocked, a StepEnd of `content_filter` is what comes next. Raises RequestError
        (`invalid_prompt`) when something given is, ServerError when nobody could look and that counts as blocked.
        """
        while True:
            if deltas := self._take():
                return deltas
            if self._gate.stopped_by is not None:
                return [self._stop(self._gate.stopped_by)]
            if await self._wait():
                return self._take()

    @property
    def can_interrupt(self) -> bool:
        """Whether the step may stop here: it goes on, and the model has begun no call that the client cannot know."""
        return self._end is None and not self._gate.holds_call

    def interrupt(self) -> list[Delta]:
        """Stop sampling; what may go out of what was sampled. The rest, and the step's end, may have to wait."""
        assert self._sequence is not None
        self._feed(self._sequence.interrupt())
        return self._take()

    def close(self) -> None:
        """The run is over: nobody waits for answers any more."""
        for asked in self._asked.values():
            asked.judge.withdraw(asked.number)
        self._asked.clear()

    # --- inside ---

    def _take(self) -> list[Delta]:
        deltas, self._cleared = [*self._cleared, *self._gate.take()], []
        if deltas and isinstance(end := deltas[-1], StepEnd):
            self.num_tokens_shown = None
            deltas[-1] = self._timed(end)
        return deltas

    def _timed(self, end: StepEnd) -> StepEnd:
        timing = msgspec.structs.replace(end.timing, classify_ms=self._took_ms)
        return msgspec.structs.replace(end, timing=timing)

    def _stop(self, found: Finding) -> StepEnd:
        """The end of a step that may not go on. Raises what `next_deltas` does."""
        assert self._sequence is not None
        if not _ends_quietly(found):
            self._sequence.cancel_step()
            raise _refusal(found)
        end = self._end or self._sequence.interrupt()[-1]
        assert isinstance(end, StepEnd)
        return self._timed(StepEnd("content_filter", end.usage, end.timing, found))

    async def _wait(self) -> bool:
        """Wait for the model or a verdict, whichever comes first. Whether it was the model, and it may go on."""
        began, deltas = now_ms(), list[Delta]()
        deadline = min((asked.deadline for asked in self._asked.values()), default=math.inf)
        with trio.CancelScope(deadline=deadline) as self._waiting:
            if self._sequence is None or self._end is not None:
                await trio.sleep_forever()
            deltas = await self._sequence.next_deltas()
        self._waiting = None
        if not deltas and self._end is not None:
            self._took_ms += now_ms() - began
        self._feed(deltas)
        self._expire()
        return bool(deltas) and self._gate.stopped_by is None

    def _feed(self, deltas: list[Delta]) -> None:
        began = now_ms()
        for delta in deltas:
            if isinstance(delta, StepEnd):
                self._end = delta
            self._gate.feed(delta)
            self._cleared += self._gate.take()  # at once, so that a batch that ends badly begins as it would have
        self._took_ms += now_ms() - began
        self._ask_all()

    def _ask_all(self) -> None:
        for question in self._gate.take_questions():
            self._ask(question)

    def _ask(self, question: Question) -> None:
        judge = self._judges[question.policy.model]
        asked = self._asked[question] = _Asked(judge, trio.current_time() + self._timeout_s)
        asked.number = judge.ask(question.text, partial(self._on_scores, question))

    def _on_scores(self, question: Question, scores: Scores | None) -> None:
        self._answered(question, "failed" if scores is None else question.policy.verdict(scores))

    def _answered(self, question: Question, verdict: Verdict) -> None:
        del self._asked[question]
        self._gate.answered(question, verdict)
        self._ask_all()
        if self._waiting is not None:
            self._waiting.cancel("a verdict is there")

    def _expire(self) -> None:
        now = trio.current_time()
        for question, asked in list(self._asked.items()):
            if asked.deadline <= now:
                log.error("policy %s: no answer within %g s", question.policy.name, self._timeout_s)
                asked.judge.give_up(asked.number)
                self._answered(question, "failed")


def _ends_quietly(found: Finding) -> bool:
    """Whether what was found ends a run as `content_filter`, and not in an error."""
    return found.outcome != "failed" and found.place not in ("input", "tool_output")


def _refusal(found: Finding) -> RequestError | ServerError:
    return not_looked_at() if found.outcome == "failed" else refused(found.place, found.policy)


def refused(place: str, policy: str) -> RequestError:
    """The error of something given that a policy blocks."""
    what = "A tool's output" if place == "tool_output" else "The input"
    return RequestError(f"{what} was refused by the policy '{policy}'.", code="invalid_prompt")


def not_looked_at() -> ServerError:
    """The error of a check that failed where that counts as blocked. What failed is in the log."""
    return ServerError("A safety check could not be made.")
