"""All policies of a server, with the judges that they need: looks at what runs are given, and opens their guards."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from engine.clock import now_ms
from engine.errors import BackendError, EngineError
from engine.items import Item
from engine.safety.config import Place
from engine.safety.gate import Gate
from engine.safety.guard import Guard, Looked, not_looked_at, refused
from engine.safety.judge import Judge
from engine.safety.patterns import Scan
from engine.safety.policies import Classifier, Judged, Policies
from engine.safety.stretch import Question
from engine.safety.verdict import Finding, Verdict, finding, stops
from engine.safety.views import texts_of
from engine.safety.watch import classify

_SLICE_CHARS: Final = 1 << 16  # of a long text, before others have a turn: less than a millisecond's work


class Lookout:
    """What watches over all runs of a server."""

    def __init__(
        self,
        policies: Policies,
        judges: Mapping[str, Judge],
        *,
        timeout_s: float,
        fails_closed: bool,
        sees_history: bool = False,
    ) -> None:
        """judges: one for each model of the policies. fails_closed: what nobody could look at counts as blocked.

        sees_history: everything before is looked at again each time, to compare what that costs.
        """
        self.sees_history = sees_history
        self._policies = policies
        self._judges = judges
        self._timeout_s = timeout_s
        self._fails_closed = fails_closed

    @property
    def is_ready(self) -> bool:
        """Whether nothing that is looked at has to wait for a model to load."""
        return all(judge.is_ready for judge in self._judges.values())

    async def wait_ready(self) -> None:
        """Wait until `is_ready`. Raises BackendError with the reason when a model could not be loaded."""
        for judge in self._judges.values():
            await judge.wait_ready()

    def open_guard(self, note: Callable[[Finding], None]) -> Guard:
        """The guard of a run that begins. note: is told what is to be recorded."""
        gate = Gate(self._policies, note, fails_closed=self._fails_closed)
        return Guard(gate, self._judges, self._timeout_s)

    async def look_at(
        self, items: Iterable[Item], *, instructions: str | None = None, earlier: Iterable[Item] = ()
    ) -> Looked:
        """What the policies say of items that a run is to be given; what a judge has yet to say comes later.

        earlier: items that were given and made before, to be looked at again.
        Raises RequestError (`invalid_prompt`) for what is blocked at once, with a path from `[i]` on or `instructions`;
        ServerError when nobody could look and that counts as blocked.
        """
        began = now_ms()
        look = _Look(self._policies, fails_closed=self._fails_closed)
        if instructions:
            await look.at("input", instructions, "instructions")
        for item in earlier:
            for place, text in texts_of(item):
                await look.at(place, text, None)
        for index, item in enumerate(items):
            for place, text in texts_of(item):
                await look.at(place, text, f"[{index}]")
        took_ms = now_ms() - began
        await self._wait_for_judges(look)
        return Looked(look.findings, look.questions, took_ms)

    async def _wait_for_judges(self, look: "_Look") -> None:
        """Have only questions that can be asked: a model may still be loading."""
        for question in list(look.questions):
            try:
                await self._judges[question.policy.model].wait_ready()
            except BackendError:
                look.questions.remove(question)
                look.hear(question.policy, question.place, "failed", None)


class _Look:
    """A look at several texts."""

    def __init__(self, policies: Policies, *, fails_closed: bool) -> None:
        self.findings: list[Finding] = []
        self.questions: list[Question] = []
        self._policies = policies
        self._fails_closed = fails_closed

    async def at(self, place: Place, text: str, param: str | None) -> None:
        """Look at a whole text, which `param` names."""
        for policy in self._policies.classifiers[place]:
            self.hear(policy, place, await _classify_whole(policy, text), param)
        self.questions += [Question(policy, place, text) for policy in self._policies.judged[place]]

    def hear(self, policy: Classifier | Judged, place: Place, verdict: Verdict, param: str | None) -> None:
        """Take in a verdict. Raises EngineError when it stops the run."""
        if verdict == "pass":
            return
        if stops(verdict, policy.action, fails_closed=self._fails_closed):
            error: EngineError = not_looked_at() if verdict == "failed" else refused(place, policy.name)
            error.param = param
            raise error
        self.findings.append(finding(policy.name, place, verdict))


async def _classify_whole(policy: Classifier, text: str) -> Verdict:
    """The first verdict other than `pass`, if there is one. Lets others have a turn when the text is long."""
    scan, start = Scan(), 0
    while True:
        end = start + _SLICE_CHARS
        verdict, scan = classify(policy, scan, text[start:end], is_last=end >= len(text))
        if verdict != "pass" or end >= len(text):
            return verdict
        start = end
        await trio.lowlevel.checkpoint()
