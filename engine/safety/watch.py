"""One policy's watch on one text that comes out of a model: how much of it is cleared.

A character is *cleared* when nothing that the policy looks for begins in it, whatever follows. A policy that only flags
clears everything at once.
"""

import logging

from engine.safety.patterns import Scan
from engine.safety.policies import Classifier, Judged
from engine.safety.verdict import Verdict

log = logging.getLogger(__name__)


class ClassifierWatch:
    """The watch of a classifier."""

    def __init__(self, policy: Classifier) -> None:
        self.policy = policy
        self.cleared = 0
        self._num_chars = 0
        self._scan = Scan()
        self._has_failed = False

    @property
    def is_clear(self) -> bool:
        """Whether all that it has seen is cleared."""
        return self.cleared == self._num_chars

    def feed(self, text: str, *, is_last: bool) -> Verdict:
        """What the policy says of this text behind what it has seen; it may be empty when it is the last."""
        self._num_chars += len(text)
        verdict: Verdict = "pass"
        if not self._has_failed:
            verdict, self._scan = classify(self.policy, self._scan, text, is_last=is_last)
            self._has_failed = verdict == "failed"
        is_held = self.policy.action == "block" and not self._has_failed
        self.cleared = self._num_chars - (self._scan.num_undecided if is_held else 0)
        return verdict

    def look_again(self, text: str) -> Verdict:
        """What it says of another way to read the whole text, unless it has found something already."""
        if self._has_failed or self._scan.is_found:
            return "pass"
        verdict, _ = classify(self.policy, Scan(), text, is_last=True)
        return verdict


class JudgedWatch:
    """The watch of a policy that a model is asked for: a stride at a time, with a stride of what came before."""

    def __init__(self, policy: Judged) -> None:
        self.policy = policy
        self._num_chars = 0
        self._num_asked = 0
        self._num_answered = 0
        self._recent = ""
        self._is_asking = False
        self._is_over = False

    @property
    def cleared(self) -> int:
        """How many characters may go out as far as this policy is concerned."""
        return self._num_answered if self.policy.action == "block" else self._num_chars

    @property
    def is_clear(self) -> bool:
        """Whether all that it has seen is cleared."""
        return self.cleared == self._num_chars

    def feed(self, text: str, *, is_last: bool) -> str:
        """What the model is to be asked now, if anything: a text that ends with this one."""
        self._num_chars += len(text)
        self._recent += text
        self._is_over = is_last
        return self._next_question()

    def answered(self) -> str:
        """What was asked has its verdict. What the model is to be asked next, if anything."""
        self._is_asking = False
        self._num_answered = self._num_asked
        return self._next_question()

    def _next_question(self) -> str:
        num_new, stride = self._num_chars - self._num_asked, self.policy.stride_chars
        if self._is_asking or num_new < (1 if self._is_over else stride):
            return ""
        question = self._recent[-(num_new + stride) :]
        self._recent = self._recent[-stride:]
        self._is_asking = True
        self._num_asked = self._num_chars
        return question


def classify(policy: Classifier, before: Scan, text: str, *, is_last: bool) -> tuple[Verdict, Scan]:
    """The classifier's verdict; `failed` when it raised, whatever that was."""
    try:
        return policy.classify(before, text, is_last=is_last)
    except Exception:  # a classifier may be anybody's; it must not take the run with it before the rule for that
        log.exception("policy %s failed", policy.name)
        return "failed", before
