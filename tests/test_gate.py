"""gate.py, stretch.py, watch.py: what goes out, when, and that nothing of a match ever does."""

import re
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, StepEnd, TextDelta
from engine.content import TokenLogprob
from engine.safety.config import Action, PatternsPolicy, Place
from engine.safety.fake import ANYWHERE, FakeClassifier
from engine.safety.gate import Gate
from engine.safety.policies import Classifier, Judged, Policies, compile_policies
from engine.safety.stretch import Question
from engine.safety.verdict import Finding

SECRET = "sk-0123456789"
START, END, STOP = CallStart("function_call", "look"), CallEnd(), StepEnd("stop")


def looking_for(pattern: str, *, action: Action = "block", on: Iterable[Place] = ANYWHERE) -> Classifier:
    policy = PatternsPolicy(name="keys", kind="patterns", patterns=[pattern], action=action, on=frozenset(on))
    return compile_policies([policy]).classifiers[next(iter(on))][0]


def judged(*, name: str = "judge", action: Action = "block", stride: int = 4, on: Iterable[Place] = ANYWHERE) -> Judged:
    return Judged(name, frozenset(on), action, "model", {"bad": 0.5}, stride)


class Gated:
    """A gate and what it noted."""

    def __init__(
        self, classifiers: Sequence[Classifier] = (), judges: Sequence[Judged] = (), *, fails_closed: bool = True
    ) -> None:
        self.notes: list[Finding] = []
        self.gate = Gate(Policies(classifiers, judges), self.notes.append, fails_closed=fails_closed)
        self.gate.begin_step()

    def pass_on(self, *deltas: Delta) -> list[Delta]:
        for delta in deltas:
            self.gate.feed(delta)
        return self.gate.take()

    def asked(self) -> list[str]:
        self.questions = self.gate.take_questions()
        return [question.text for question in self.questions]


KEYS = r"sk-[0-9]{10}"


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta | ReasoningDelta | CallDelta))


# --- patterns ----------------------------------------------------------------------------------------------------


def test_without_policies_everything_passes_at_once_and_as_it_is() -> None:
    deltas = [ReasoningDelta("r"), TextDelta("a"), TextDelta("b"), START, CallDelta("{"), CallDelta("}"), END, STOP]
    gated = Gated()
    for delta in deltas:
        assert gated.pass_on(delta) == [delta]
    assert gated.gate.stopped_by is None


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta, CallDelta])
def test_not_one_character_of_a_match_goes_out_wherever_it_is_cut(kind: type[Delta]) -> None:  # P93
    text = f"I say {SECRET} twice."
    inside = range(1, len(text))
    for places in ((), *combinations(inside, 1), *combinations(inside, 2), tuple(inside)):
        _expect_nothing_of_it(kind, [text[start:end] for start, end in pairwise((0, *places, len(text)))])


def _expect_nothing_of_it(kind: type[Delta], pieces: list[str]) -> None:
    gated = Gated([looking_for(KEYS)])
    deltas = [kind(piece) for piece in pieces]
    out = gated.pass_on(START) if kind is CallDelta else []
    for delta in deltas:
        out += gated.pass_on(delta)
    out += gated.pass_on(*([END] if kind is CallDelta else []), STOP)
    assert "I say ".startswith(text_of(out))
    assert kind is not CallDelta or out == [START]
    assert gated.gate.stopped_by == Finding("keys", "arguments" if kind is CallDelta else "output", "blocked")
    assert gated.notes == [gated.gate.stopped_by]


@given(st.lists(st.sampled_from([*"sk-01", "sk-", "0123456789", SECRET, " "]), max_size=30))
def test_what_is_clean_comes_out_whole_and_what_is_held_is_shorter_than_a_match(pieces: list[str]) -> None:  # P93
    gated = Gated([looking_for(KEYS)])
    text, out = "", ""
    for piece in pieces:
        out += text_of(gated.pass_on(TextDelta(piece)))
        text += piece
        if gated.gate.stopped_by:
            break
        assert len(text) - len(out) < len(SECRET)
    end = gated.pass_on(STOP)
    if gated.gate.stopped_by:
        assert text[: text.index(re.search(KEYS, text)[0])].startswith(out)  # type: ignore[index]
    else:
        assert (out + text_of(end), end[-1]) == (text, STOP)


def test_text_that_begins_nothing_is_not_held() -> None:
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(TextDelta("It is ")) == [TextDelta("It is ")]
    assert gated.pass_on(TextDelta("sky")) == [TextDelta("sky")]
    assert gated.pass_on(TextDelta("a sk")) == [TextDelta("a ")]
    assert gated.pass_on(TextDelta("-1")) == []
    assert gated.pass_on(TextDelta("x")) == [TextDelta("sk"), TextDelta("-1"), TextDelta("x")]


def test_a_new_kind_of_delta_ends_a_text() -> None:
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(TextDelta("sk-")) == []
    assert gated.pass_on(ReasoningDelta("0123456789")) == [TextDelta("sk-"), ReasoningDelta("0123456789")]
    assert gated.pass_on(TextDelta("sk-"), START) == [TextDelta("sk-"), START]


def test_arguments_go_out_together_when_the_call_is_whole() -> None:  # P94
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(START, CallDelta('{"a": '), CallDelta("1}")) == [START]
    assert gated.gate.holds_call
    assert gated.pass_on(END) == [CallDelta('{"a": '), CallDelta("1}"), END]
    assert not gated.gate.holds_call


def test_arguments_stop_the_run_before_they_are_whole() -> None:
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(START) == [START]
    assert gated.pass_on(CallDelta(SECRET)) == []
    assert gated.gate.stopped_by


@pytest.mark.parametrize("arguments", [r'{"k": "\u0073k-0123456789"}', r'{"k": "sk\u002d012345678\u0039", "k": "x"}'])
def test_arguments_are_looked_at_as_their_reader_will_see_them(arguments: str) -> None:  # P94
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(START) == [START]
    assert gated.pass_on(CallDelta(arguments), END) == []
    assert gated.notes == [Finding("keys", "arguments", "blocked")]


def test_where_a_policy_does_not_look_nothing_is_held() -> None:
    gated = Gated([looking_for(KEYS, on=["arguments"])])
    assert gated.pass_on(TextDelta(SECRET)) == [TextDelta(SECRET)]
    gated = Gated([looking_for(KEYS, on=["output"])])
    assert gated.pass_on(START, CallDelta(SECRET)) == [START, CallDelta(SECRET)]


def test_a_flag_holds_nothing_and_is_noted_once_a_text() -> None:
    gated = Gated([looking_for(KEYS, action="flag")])
    assert gated.pass_on(TextDelta("sk-")) == [TextDelta("sk-")]
    assert gated.pass_on(TextDelta("0123456789")) == [TextDelta("0123456789")]
    assert gated.pass_on(TextDelta(SECRET), START, CallDelta(f"{SECRET}\\n"), END) != []
    assert gated.notes == [Finding("keys", "output", "flagged"), Finding("keys", "arguments", "flagged")]
    assert gated.gate.stopped_by is None


def test_the_strictest_of_several_policies_decides() -> None:
    gated = Gated([looking_for("sk-", action="flag"), looking_for("k-[0-9]{4}"), looking_for("[0-9]{2}x")])
    assert gated.pass_on(TextDelta("ask-")) == [TextDelta("as")]
    assert gated.pass_on(TextDelta("12")) == []
    assert gated.pass_on(TextDelta("y")) == [TextDelta("k-"), TextDelta("12"), TextDelta("y")]
    assert gated.pass_on(TextDelta("k-1234")) == []
    assert [note.outcome for note in gated.notes] == ["flagged", "blocked"]


def rated(text: str, *tokens: str) -> TextDelta:
    return TextDelta(text, tuple(TokenLogprob(token, list(token.encode()), -0.1) for token in tokens))


def test_log_probabilities_spell_nothing_out_that_is_held() -> None:  # P93
    """A token that begins in one piece may go on in the next, and its log-probability has all of it."""
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(rated("the ", "the ")) == []
    assert gated.pass_on(rated("key: ", "key: sk")) == [rated("the ", "the ")]
    assert gated.pass_on(TextDelta("sk"), rated("-0123456789", "-0123456789"), STOP) == []
    assert gated.gate.stopped_by

    gated = Gated([looking_for(KEYS)])
    pieces = [rated("the ", "the "), rated("key: ", "key: sk"), TextDelta("sk"), rated("!", "!")]
    assert [*gated.pass_on(*pieces), *gated.pass_on(STOP)] == [*pieces, STOP]
    assert Gated([looking_for(KEYS, action="flag")]).pass_on(pieces[0]) == [pieces[0]]


def test_nothing_goes_in_or_out_once_it_is_stopped() -> None:
    gated = Gated([looking_for(KEYS)])
    assert gated.pass_on(TextDelta(SECRET), TextDelta(SECRET), STOP) == []
    assert gated.notes == [Finding("keys", "output", "blocked")]


# --- classifiers that fail -----------------------------------------------------------------------------------------


def test_a_classifier_that_raises_stops_the_run_if_it_is_to_fail_closed() -> None:
    gated = Gated([FakeClassifier(lambda text: 1 / 0)])
    assert gated.pass_on(TextDelta("a"), TextDelta("b")) == []
    assert gated.gate.stopped_by == Finding("fake", "output", "failed")


@pytest.mark.parametrize(("fails_closed", "action"), [(False, "block"), (True, "flag")])
def test_one_that_raises_else_is_noted_and_holds_nothing_any_more(fails_closed: bool, action: Action) -> None:
    classifier = FakeClassifier(lambda text: 1 / 0, action=action)
    gated = Gated([classifier], fails_closed=fails_closed)
    assert gated.pass_on(TextDelta("a")) == [TextDelta("a")]
    assert gated.pass_on(TextDelta("b"), STOP) == [TextDelta("b"), STOP]
    assert gated.notes == [Finding("fake", "output", "failed")]
    assert classifier.seen == ["a"]


# --- judges --------------------------------------------------------------------------------------------------------


def test_a_judge_is_asked_a_stride_at_a_time_with_a_stride_of_context() -> None:
    gated = Gated(judges=[judged()])
    assert gated.pass_on(TextDelta("abc")) == []
    assert gated.asked() == []
    gated.pass_on(TextDelta("de"))
    assert gated.asked() == ["abcde"]
    (question,) = gated.questions
    assert gated.pass_on(TextDelta("fghi"), TextDelta("jk")) == []
    assert gated.asked() == []  # one at a time
    gated.gate.answered(question, "pass")
    assert gated.gate.take() == [TextDelta("abc"), TextDelta("de")]
    assert gated.asked() == ["bcdefghijk"]
    (question,) = gated.questions
    assert gated.pass_on(TextDelta("l"), STOP) == []
    gated.gate.answered(question, "pass")
    assert text_of(gated.gate.take()) == "fghijk"
    assert gated.asked() == ["hijkl"]
    gated.gate.answered(gated.questions[0], "pass")
    assert gated.gate.take() == [TextDelta("l"), STOP]


def test_a_judge_is_asked_about_arguments_as_a_whole() -> None:
    gated = Gated(judges=[judged()])
    assert gated.pass_on(START, *map(CallDelta, ('{"k": "', r"\u0073", '!"}')), END) == [START]
    assert gated.asked() == ['{"k": "\\u0073!"}\n{"k": "s!"}']
    assert gated.pass_on(STOP) == []
    gated.gate.answered(gated.questions[0], "pass")
    assert text_of(gated.gate.take()) == '{"k": "\\u0073!"}'


def test_a_judge_that_blocks_stops_the_run() -> None:
    gated = Gated(judges=[judged()])
    gated.pass_on(TextDelta("abcd"), STOP)
    gated.asked()
    gated.gate.answered(gated.questions[0], "block")
    assert gated.gate.take() == []
    assert gated.gate.stopped_by == Finding("judge", "output", "blocked")


def test_a_judge_that_flags_holds_the_end_of_the_step_alone() -> None:
    gated = Gated(judges=[judged(action="flag")])
    assert gated.pass_on(TextDelta("abcd"), START, CallDelta("{}"), END, STOP) != [STOP]
    assert [len(text) for text in gated.asked()] == [4, 2]
    text, arguments = gated.questions
    gated.gate.answered(text, "flag")
    assert gated.gate.take() == []
    gated.gate.answered(arguments, "failed")
    assert gated.gate.take() == [STOP]
    assert gated.notes == [Finding("judge", "output", "flagged"), Finding("judge", "arguments", "failed")]


def test_text_goes_out_when_all_judges_have_cleared_it() -> None:
    gated = Gated([looking_for(KEYS)], [judged(name="one"), judged(name="two", stride=2)])
    gated.pass_on(TextDelta("abcd sk"))
    assert gated.asked() == ["abcd sk", "abcd sk"]
    first, second = gated.questions
    gated.gate.answered(first, "pass")
    assert gated.gate.take() == []
    gated.gate.answered(second, "pass")
    assert gated.gate.take() == [TextDelta("abcd ")]


def test_a_judge_that_fails_open_lets_the_text_out() -> None:
    gated = Gated(judges=[judged()], fails_closed=False)
    gated.pass_on(TextDelta("abcd"), STOP)
    gated.asked()
    gated.gate.answered(gated.questions[0], "failed")
    assert gated.gate.take() == [TextDelta("abcd"), STOP]


# --- what a step is given ------------------------------------------------------------------------------------------


def about_input() -> Question:
    return Question(judged(), "input", "hello")


def test_nothing_goes_out_before_the_verdict_on_what_was_given() -> None:
    gated, one, two = Gated(), about_input(), about_input()
    gated.gate.give([], [one, two])
    gated.gate.begin_step()
    assert gated.pass_on(TextDelta("a"), STOP) == []
    gated.gate.answered(one, "pass")
    assert gated.gate.take() == []
    assert gated.gate.open_questions == {two}
    gated.gate.answered(two, "flag")
    assert gated.gate.take() == [TextDelta("a"), STOP]
    assert gated.notes == [Finding("judge", "input", "flagged")]


def test_what_the_next_step_is_given_does_not_concern_this_one() -> None:
    gated, question = Gated(), about_input()
    gated.gate.give([], [question])
    assert gated.pass_on(TextDelta("a")) == [TextDelta("a")]
    gated.gate.answered(question, "block")
    assert gated.gate.stopped_by is None
    assert gated.pass_on(STOP) == [STOP]
    gated.gate.begin_step()
    assert gated.gate.stopped_by == Finding("judge", "input", "blocked")
