"""Policies made ready: who looks at what, at once or by asking a model.

A *classifier* decides at once, as a pure function: what it knows of a text so far and what is new of it give a verdict
and what it knows then. A *judged* policy has the text put to a model elsewhere, and its thresholds turn scores into the
verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, get_args

from engine.safety.config import Action, ModelPolicy, PatternsPolicy, Place, Policy, SecretsPolicy
from engine.safety.expression import parse_expression
from engine.safety.patterns import Patterns, Scan
from engine.safety.secrets import FORMATS
from engine.safety.verdict import Verdict

PLACES: Final[tuple[Place, ...]] = get_args(Place)
Scores = Mapping[str, float]


class Classifier(Protocol):
    """A policy that decides at once."""

    @property
    def name(self) -> str: ...
    @property
    def on(self) -> frozenset[Place]: ...
    @property
    def action(self) -> Action: ...

    def classify(self, before: Scan, text: str, *, is_last: bool) -> tuple[Verdict, Scan]:
        """What it says of a text that goes on with `text` (is_last: and ends there), and what it knows then.

        Each match is told once in a text. What is undecided at the end must be held back by whoever lets the text out.
        """


class PatternClassifier:
    """Looks for patterns."""

    def __init__(self, name: str, on: frozenset[Place], action: Action, patterns: Patterns) -> None:
        self.name = name
        self.on = on
        self.action: Action = action
        self._patterns = patterns

    def classify(self, before: Scan, text: str, *, is_last: bool) -> tuple[Verdict, Scan]:
        after = self._patterns.scan(before, text, is_last=is_last)
        return (self.action if after.is_found and not before.is_found else "pass"), after


class Judged(NamedTuple):
    """A policy that a model has to be asked for. See ModelPolicy."""

    name: str
    on: frozenset[Place]
    action: Action
    model: str
    labels: Mapping[str, float]
    stride_chars: int

    def verdict(self, scores: Scores) -> Verdict:
        """What the model's scores mean."""
        return self.action if any(scores.get(label, 0) >= least for label, least in self.labels.items()) else "pass"


class Policies:
    """All policies of a server, by the place that they look at."""

    def __init__(self, classifiers: Sequence[Classifier] = (), judged: Sequence[Judged] = ()) -> None:
        self.classifiers = {place: [one for one in classifiers if place in one.on] for place in PLACES}
        self.judged = {place: [one for one in judged if place in one.on] for place in PLACES}
        self.models = {
            one.model: {label for other in judged if other.model == one.model for label in other.labels}
            for one in judged
        }


def compile_policies(configured: Iterable[Policy]) -> Policies:
    """The policies that people wrote, made ready. Raises ValueError for one that is too large as a whole."""
    policies = list(configured)
    classifiers = [_classifier(policy) for policy in policies if not isinstance(policy, ModelPolicy)]
    judged = [
        Judged(policy.name, policy.on, policy.action, policy.model, policy.labels, policy.stride_chars)
        for policy in policies
        if isinstance(policy, ModelPolicy)
    ]
    return Policies(classifiers, judged)


def _classifier(policy: PatternsPolicy | SecretsPolicy) -> Classifier:
    if isinstance(policy, SecretsPolicy):
        patterns = Patterns([parse_expression(pattern) for pattern in FORMATS.values()])
    else:
        expressions = [parse_expression(pattern) for pattern in policy.patterns]
        patterns = Patterns(expressions, ignore_case=policy.ignore_case)
    return PatternClassifier(policy.name, policy.on, policy.action, patterns)
