"""The gate between a model and its client, for one step after the other: deltas go in, and out as far as they may.

    given  ── asked about ──▶ shut ── all verdicts there ──▶ open
    deltas ── looked at ────▶ held ── cleared, in order ───▶ out          anything that stops the run ──▶ stopped

The model never waits for the gate. Nothing goes out while a verdict is missing on what the step was given; then each
text as far as it is cleared (stretch.py), and what comes after a text when all of that is out; the end of the step when
every question has its answer. Once stopped, nothing goes out any more: what was held may belong to what was found.
"""

from collections import deque
from collections.abc import Callable, Iterable

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, StepEnd, TextDelta
from engine.safety.policies import Policies
from engine.safety.stretch import Piece, Question, Said, Stretch
from engine.safety.verdict import Finding, Verdict, finding, stops

Mark = CallStart | CallEnd | StepEnd


class Gate:
    """All steps of one run. Raises nothing; once `stopped_by` is set, the run has to be ended."""

    def __init__(self, policies: Policies, note: Callable[[Finding], None], *, fails_closed: bool) -> None:
        """note: is told what is to be recorded. fails_closed: what nobody could look at stops the run."""
        self.stopped_by: Finding | None = None
        self._policies = policies
        self._note = note
        self._fails_closed = fails_closed
        self._given: set[Question] = set()
        self._given_next: set[Question] = set()
        self._stopped_next: Finding | None = None
        self._asked: set[Question] = set()
        self._to_ask: list[Question] = []
        self._queue: deque[Stretch | Mark] = deque()
        self._growing: Stretch | None = None
        self._is_in_call = False

    @property
    def open_questions(self) -> set[Question]:
        """Those that this step waits for."""
        return self._given | self._asked

    @property
    def holds_call(self) -> bool:
        """Whether there is a call that the client knows nothing of, or not all."""
        return self._is_in_call or any(isinstance(entry, CallStart | CallEnd) for entry in self._queue)

    # --- what a step is given ---

    def give(self, findings: Iterable[Finding], questions: Iterable[Question]) -> None:
        """The next step is given something in which these were found, and which these ask about."""
        for found in findings:
            self._note(found)
        self._given_next.update(questions)

    def begin_step(self) -> None:
        """A step begins, with what it was given."""
        self._given, self._given_next = self._given_next, set()
        self.stopped_by, self._stopped_next = self.stopped_by or self._stopped_next, None

    # --- what the model makes ---

    def feed(self, delta: Delta) -> None:
        """One delta more."""
        if self.stopped_by:
            return
        if isinstance(delta, TextDelta | ReasoningDelta | CallDelta):
            self._hear(self._stretch_for(delta).feed(delta))
            return
        self._close_growing()
        self._is_in_call = isinstance(delta, CallStart)
        self._queue.append(delta)

    def weigh(self, summary: str) -> None:
        """Look at a summary: nobody gets it, but the model goes on from it, and its tokens are in the log."""
        stretch = Stretch(TextDelta, self._policies)
        self._hear(stretch.feed(TextDelta(summary)))
        self._hear(stretch.close())

    def take_questions(self) -> list[Question]:
        """What judges are to be asked."""
        questions, self._to_ask = self._to_ask, []
        return questions

    def answered(self, question: Question, verdict: Verdict) -> None:
        """A judge's verdict."""
        is_next = question in self._given_next
        self._given_next.discard(question)
        self._given.discard(question)
        self._asked.discard(question)
        said = Said(question.policy, question.place, verdict)
        if is_next:
            self._stopped_next = self._stopped_next or self._stops(said)
            return
        self._hear([said])
        if question.stretch is not None:
            self._hear(question.stretch.answered(question))

    def _stretch_for(self, piece: Piece) -> Stretch:
        """The text that the piece belongs to: the one that grows, or a new one."""
        kind, growing = type(piece), self._growing
        if growing is not None and growing.kind is kind:
            return growing
        self._close_growing()
        self._growing = Stretch(kind, self._policies)
        self._queue.append(self._growing)
        return self._growing

    def _close_growing(self) -> None:
        if self._growing is not None:
            self._hear(self._growing.close())
            self._growing = None

    def _hear(self, heard: Iterable[Said | Question]) -> None:
        for each in heard:
            if isinstance(each, Question):
                self._asked.add(each)
                self._to_ask.append(each)
            else:
                self.stopped_by = self.stopped_by or self._stops(each)

    def _stops(self, said: Said) -> Finding | None:
        """What stops the run, if this does. Whatever is to be recorded is."""
        if said.verdict == "pass":
            return None
        found = finding(said.policy.name, said.place, said.verdict)
        self._note(found)
        return found if stops(said.verdict, said.policy.action, fails_closed=self._fails_closed) else None

    # --- what the client gets ---

    def take(self) -> list[Delta]:
        """What may go out and has not, in order."""
        taken: list[Delta] = []
        while self._queue and not (self._given or self.stopped_by):
            head = self._queue[0]
            if isinstance(head, Stretch):
                taken += head.take()
                if not head.is_out:
                    break
            elif isinstance(head, StepEnd) and self._asked:
                break
            else:
                taken.append(head)
            self._queue.popleft()
        return taken
