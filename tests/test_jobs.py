"""jobs.py and job.py with a model whose logits depend on all it was given."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from engine.backends.constraint import Constraint
from engine.backends.frames import Adopt, Begun, Drop, Extend, Failed, Finished, Report, Sample, Sampled, Stop
from engine.backends.guide import Guides
from engine.backends.jobs import Jobs
from engine.backends.sampling import Sampler, log_prob
from engine.backends.scheduler import Pace
from tests.fake_model import FakeModel, greedy, logits_after
from tests.tiny import STOP_ID, VOCAB_SIZE, make_tokenizer, save_tokenizer

PROMPT = list(range(100, 130))
CALL = 'start: "<" "call>" ("a" | "b") ">"'


@pytest.fixture(scope="module")
def guides(tmp_path_factory):
    return Guides(save_tokenizer(tmp_path_factory.mktemp("jobs")), vocab_size=VOCAB_SIZE, stop_ids=[STOP_ID])


class Bench:
    """Jobs with a clock that ticks by one second a look, and the reports of everything so far."""

    def __init__(self, guides: Guides, chunk: int = 16) -> None:
        self.model = FakeModel()
        ticks = itertools.count()
        # As many ids a step whatever lies before them, however long it takes.
        pace = Pace(math.inf, most=chunk, span=math.inf)
        self.jobs = Jobs(self.model, guides, lambda: float(next(ticks)), pace)
        self.reports: list[Report] = []

    def tell(self, *commands) -> "Bench":
        for command in commands:
            self.reports += self.jobs.handle(command)
        return self

    def run(self, max_steps: int = 1000) -> "Bench":
        while not self.jobs.is_idle and max_steps:
            self.reports += self.jobs.step()
            max_steps -= 1
        return self

    def sampled(self, job: int) -> list[int]:
        return [
            id_ for report in self.reports if isinstance(report, Sampled) and report.job == job for id_ in report.ids
        ]

    def finished(self, job: int) -> Finished | None:
        return next((r for r in self.reports if isinstance(r, Finished) and r.job == job), None)

    def failed(self, job: int) -> Failed | None:
        return next((r for r in self.reports if isinstance(r, Failed) and r.job == job), None)

    @property
    def num_computed(self) -> int:
        return sum(itertools.chain.from_iterable(self.model.steps))


@pytest.fixture
def bench(guides):
    return Bench(guides)


def sample(job: int, seq: int = 1, **fields) -> Sample:
    return Sample(
        **{"seq": seq, "job": job, "max_tokens": 5, "stop_ids": [STOP_ID], "seed": 0, "temperature": 0.0} | fields
    )


def test_a_job_samples_to_its_limit(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run()
    assert bench.sampled(1) == greedy(PROMPT, 5)
    end = bench.finished(1)
    assert (end.reason, end.reused, end.prefilled) == ("length", 0, 30)
    assert bench.model.steps == [[16], [14], [1], [1], [1], [1]]


def test_times_add_up(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run()
    end = bench.finished(1)
    assert (end.queue_ms, end.prefill_ms, end.sampling_ms) == (1000, 3000, 9000)


def test_a_resumed_sequence_computes_every_id_once(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run()
    given = [200, 201, 202]
    bench.tell(Extend(1, 35, given), sample(2)).run()
    context = PROMPT + bench.sampled(1) + given
    assert bench.sampled(2) == greedy(context, 5)
    assert (bench.finished(2).reused, bench.finished(2).prefilled) == (34, 4)
    assert bench.num_computed == len(context) + 4  # the last id sampled is not computed yet


def test_several_sequences_share_steps_and_get_what_they_get_alone(bench):
    prompts = [[seq + 10, *PROMPT[: 5 + 9 * seq]] for seq in range(3)]
    for seq, ids in enumerate(prompts):
        bench.tell(Extend(seq, 0, ids), sample(10 + seq, seq))
    bench.run()
    for seq, ids in enumerate(prompts):
        assert bench.sampled(10 + seq) == greedy(ids, 5)
    assert [1, 1, 1] in bench.model.steps


def test_given_ids_are_computed_early_but_for_two(bench):
    bench.tell(Extend(1, 0, PROMPT)).run()
    assert bench.num_computed == 28
    bench.tell(sample(1)).run()
    assert bench.sampled(1) == greedy(PROMPT, 5)
    assert (bench.finished(1).reused, bench.finished(1).prefilled) == (0, 30)


def test_a_job_says_at_once_what_it_reuses(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run()
    reports = len(bench.reports)
    bench.tell(Extend(1, 35, [7]), sample(2))
    assert bench.reports[reports:] == [Begun(1, 2, 34)]


def test_a_stop_during_prefill_ends_it(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run(max_steps=1)
    bench.tell(Stop(1, 1))
    assert bench.jobs.is_idle
    assert bench.reports == [Begun(1, 1, 0)]
    bench.tell(Extend(1, 30, []), sample(2)).run()
    assert bench.sampled(2) == greedy(PROMPT, 5)
    assert bench.finished(2).reused == 16


def test_a_stop_of_an_earlier_job_changes_nothing(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(2), Stop(1, 1), Stop(7, 2)).run()
    assert bench.finished(2)


def test_extend_cuts_off_what_the_server_did_not_take(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run(max_steps=5)
    taken = bench.sampled(1)[:2]
    bench.tell(Stop(1, 1), Extend(1, 32, [200]), sample(2)).run()
    assert bench.sampled(2) == greedy([*PROMPT, *taken, 200], 5)


def test_a_job_with_nothing_new_computes_the_last_id_again(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run(max_steps=5)
    bench.tell(Stop(1, 1), Extend(1, 30, []), sample(2)).run()
    assert bench.sampled(2) == greedy(PROMPT, 5)
    assert (bench.finished(2).reused, bench.finished(2).prefilled) == (29, 1)


def test_a_sequence_that_is_not_there_is_lost(bench):
    bench.tell(sample(1), Extend(2, 5, [1]), sample(2, 2)).run()
    assert bench.failed(1).is_lost
    assert bench.failed(2).is_lost


def test_a_hole_in_the_ids_loses_the_sequence(bench):
    bench.tell(Extend(1, 0, PROMPT), Extend(1, 31, [5]), sample(1)).run()
    assert bench.failed(1).is_lost


def test_a_dropped_sequence_is_lost_and_its_job_ends(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1), Drop(1)).run()
    assert bench.reports == [Begun(1, 1, 0)]
    bench.tell(sample(2))
    assert bench.failed(2).is_lost


@pytest.mark.parametrize("move", [True, False])
def test_an_adopted_prefix_is_not_computed_again(bench, move):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run()
    bench.tell(Adopt(2, 1, 20, move), Extend(2, 20, [7, 8]), sample(2, 2)).run()
    assert bench.sampled(2) == greedy([*PROMPT[:20], 7, 8], 5)
    assert (bench.finished(2).reused, bench.finished(2).prefilled) == (20, 2)
    bench.tell(sample(3, 1)).run()
    assert (bench.failed(3) is not None) == move


def test_a_prefix_that_is_still_computed_is_computed_once(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run(max_steps=1)
    bench.tell(Adopt(2, 1, 20, False), Extend(2, 20, [7, 8]), sample(2, 2)).run()
    assert bench.sampled(1) == greedy(PROMPT, 5)
    assert bench.sampled(2) == greedy([*PROMPT[:20], 7, 8], 5)
    assert (bench.finished(2).reused, bench.finished(2).prefilled) == (20, 2)
    assert bench.num_computed == 30 + 4 + 2 + 4


@pytest.mark.parametrize("end", [Stop(1, 1), Drop(1), Extend(1, 5, [])])
def test_who_waits_for_a_prefix_goes_on_alone_when_it_does_not_come(bench, end):
    bench.tell(Extend(1, 0, PROMPT), sample(1)).run(max_steps=1)
    bench.tell(Adopt(2, 1, 20, False), Extend(2, 20, [7, 8]), sample(2, 2), end).run()
    assert bench.sampled(2) == greedy([*PROMPT[:20], 7, 8], 5)
    assert (bench.finished(2).reused, bench.finished(2).prefilled) == (16, 6)


def test_early_text_that_somebody_waits_for_counts_as_a_prompt(guides):
    bench, busy = Bench(guides, chunk=32), sample(3, 3, max_tokens=1)
    bench.tell(Extend(1, 0, PROMPT), Adopt(2, 1, 20, False), Extend(2, 20, [7]), sample(2, 2))
    bench.tell(Extend(3, 0, list(range(10, 250))), busy).run(max_steps=3)
    assert bench.sampled(2) == greedy([*PROMPT[:20], 7], 1)


def test_adopting_from_nobody_is_a_loss_like_others(bench):
    bench.tell(Adopt(2, 1, 20, True), Extend(2, 20, [7]), sample(2, 2))
    assert bench.failed(2).is_lost


def test_a_stop_id_ends_the_job(bench, guides):
    bench.tell(Extend(1, 0, PROMPT), sample(1, stop_ids=greedy(PROMPT, 3)[2:])).run()
    assert bench.sampled(1) == greedy(PROMPT, 3)
    assert bench.finished(1).reason == "stop"


def test_forced_ids_go_through_the_model_together(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, max_tokens=50, constraint=Constraint(CALL))).run()
    text = make_tokenizer().decode(bench.sampled(1), skip_special_tokens=False)
    assert text in {"<call>a><|im_end|>", "<call>b><|im_end|>"}
    assert bench.finished(1).reason == "stop"
    assert bench.finished(1).prefilled == 30
    assert bench.model.steps[1:] == [[19]]  # 30 given and 5 forced before the draw; those after it stay behind


def test_forced_ids_count_towards_the_limit(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, max_tokens=2, constraint=Constraint(CALL)))
    assert len(bench.sampled(1)) == 2
    assert bench.finished(1).reason == "length"
    assert bench.model.steps == []


def test_a_bad_grammar_fails_its_job_only(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, constraint=Constraint("start: nothing")), sample(2)).run()
    assert "nothing" in bench.failed(1).message
    assert bench.failed(1).by_grammar and not bench.failed(1).is_lost
    assert bench.finished(2)


def test_a_draw_that_fails_fails_its_job_only(bench, monkeypatch):
    """Whatever a client's request makes of the numbers: the worker is everybody's."""
    draw = Sampler.draw

    def fail(self, row, position):
        if self.seed == 13:
            raise IndexError("no such id")
        return draw(self, row, position)

    monkeypatch.setattr(Sampler, "draw", fail)
    bench.tell(Extend(1, 0, PROMPT), sample(1, seed=13), Extend(2, 0, PROMPT), sample(2, seq=2)).run()
    assert bench.failed(1).message == "IndexError: no such id"
    assert not bench.failed(1).by_grammar
    assert len(bench.sampled(2)) == 5


def test_no_room_at_all_ends_at_once(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, max_tokens=0))
    assert bench.finished(1).reason == "length"
    assert bench.finished(1).prefill_ms == 0


@pytest.mark.parametrize("constraint", [None, Constraint(CALL)])
def test_chances_are_the_models_own_for_each_id(bench, constraint):
    fields = {"temperature": 0.7, "frequency_penalty": 0.7, "constraint": constraint, "max_tokens": 9}
    bench.tell(Extend(1, 0, PROMPT), sample(1, top_logprobs=3, **fields)).run()
    context = list(PROMPT)
    for report in (report for report in bench.reports if isinstance(report, Sampled)):
        (id_,), (chance,) = report.ids, report.chances
        row = logits_after(context).astype(float)
        expected = row - np.log(np.exp(row).sum())
        assert chance.logprob == pytest.approx(expected[id_], abs=1e-5)
        assert [top for top, _ in chance.top] == list(np.argsort(-row)[:3])
        context.append(id_)
    bench.tell(Extend(2, 0, PROMPT), sample(2, 2, **fields)).run()
    assert bench.sampled(2) == context[len(PROMPT) :]
    assert bench.finished(2).reason == bench.finished(1).reason
    assert all(report.chances is None for report in bench.reports if isinstance(report, Sampled) and report.job == 2)


# --- an id that is tried before the step is decided ---------------------------------------------------------------

OPENING = [make_tokenizer().token_to_id(text) for text in ("<", "c")]
SCORE = float(sum(log_prob(logits_after(PROMPT + OPENING[:at]), id_) for at, id_ in enumerate(OPENING)))
FIRST = log_prob(logits_after(PROMPT), OPENING[0])


def deciding(threshold: float) -> Constraint:
    return Constraint(CALL, "decide", OPENING[0], threshold, OPENING[1])


CALLS, TAKES_BACK, REFUSES = deciding(SCORE - 0.01), deciding(SCORE + 0.01), deciding(FIRST + 0.01)


def test_a_trial_that_holds_is_the_first_id_of_its_call(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, max_tokens=50, constraint=CALLS)).run()
    text = make_tokenizer().decode(bench.sampled(1), skip_special_tokens=False)
    assert text in {"<call>a><|im_end|>", "<call>b><|im_end|>"}
    assert bench.model.steps[:4] == [[16], [14], [1], [4]]  # the trial alone, then what is forced behind it
    context = [*PROMPT, *bench.sampled(1)]
    bench.tell(Extend(1, len(context), [200]), sample(2)).run()
    assert bench.sampled(2) == greedy([*context, 200], 5)


@pytest.mark.parametrize(("constraint", "num_steps"), [(TAKES_BACK, 8), (REFUSES, 7)])
def test_a_trial_that_does_not_hold_leaves_no_trace(bench, constraint, num_steps):
    bench.tell(Extend(1, 0, PROMPT), sample(1, constraint=constraint, max_tokens=6)).run()
    row = logits_after(PROMPT)
    row[OPENING[0]] = -np.inf
    first = int(row.argmax())
    assert bench.sampled(1) == [first, *greedy([*PROMPT, first], 5)]
    assert len(bench.model.steps) == num_steps
    assert all(report.ids for report in bench.reports if isinstance(report, Sampled))


def test_a_job_that_is_stopped_during_a_trial_takes_it_back(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, constraint=TAKES_BACK)).run(max_steps=2)
    assert bench.sampled(1) == []
    bench.tell(Stop(1, 1), sample(2)).run()
    assert bench.sampled(2) == greedy(PROMPT, 5)


def test_chances_of_a_trial_that_holds_are_told_with_it(bench):
    bench.tell(Extend(1, 0, PROMPT), sample(1, constraint=CALLS, top_logprobs=2, max_tokens=9)).run()
    ids, chances = bench.sampled(1), [c for r in bench.reports if isinstance(r, Sampled) for c in r.chances]
    assert len(ids) == len(chances) == 8
    expected = [log_prob(logits_after(PROMPT + ids[:at]), id_) for at, id_ in enumerate(ids)]
    assert [chance.logprob for chance in chances] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("top_logprobs", [None, 2])
@pytest.mark.parametrize("constraint", [None, Constraint(CALL), CALLS, TAKES_BACK])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_job_goes_on_in_another_worker_as_if_nothing_had_happened(guides, constraint, temperature, top_logprobs):
    fields = {"max_tokens": 12, "temperature": temperature, "frequency_penalty": 0.7, "constraint": constraint}
    fields["top_logprobs"] = top_logprobs
    whole = Bench(guides).tell(Extend(1, 0, PROMPT), sample(1, **fields)).run()
    ids = whole.sampled(1)
    for cut in range(1, len(ids) + 1):
        rest = {**fields, "max_tokens": 12 - cut, "num_sampled": cut}
        other = Bench(guides).tell(Extend(1, 0, PROMPT + ids[:cut]), sample(2, **rest)).run()
        assert ids[:cut] + other.sampled(2) == ids
        assert other.finished(2).reason == whole.finished(1).reason


class JobsWalk(RuleBasedStateMachine):
    """Random commands as a server gives them, against what each context would give alone."""

    guides: Guides

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(self.guides, chunk=24)
        self.contexts: dict[int, list[int]] = {}  # as the server has them
        self.sampling: dict[int, int] = {}  # job by sequence
        self.expected: dict[int, list[int]] = {}  # of each job that was not stopped
        self.num_read = self.num_jobs = self.num_seqs = 0

    def at_rest(self) -> st.SearchStrategy[int]:
        return st.sampled_from(sorted(self.contexts.keys() - self.sampling.keys()))

    @property
    def has_rest(self) -> bool:
        return bool(self.contexts.keys() - self.sampling.keys())

    @rule(count=st.integers(1, 400), salt=st.integers(3, 99))
    def open(self, count: int, salt: int) -> None:
        ids = [salt, *(100 + n % 150 for n in range(count))]
        self.num_seqs += 1
        self.contexts[self.num_seqs] = ids
        self.bench.tell(Extend(self.num_seqs, 0, ids))

    @precondition(lambda self: self.has_rest)
    @rule(data=st.data(), ids=st.lists(st.integers(3, 300), max_size=40))
    def extend(self, data: st.DataObject, ids: list[int]) -> None:
        seq = data.draw(self.at_rest())
        length = len(self.contexts[seq])
        base = data.draw(st.one_of(st.just(length), st.integers(1, length)))  # less: another context begins
        self.bench.tell(Extend(seq, base, ids))
        self.contexts[seq] = [*self.contexts[seq][:base], *ids]

    @precondition(lambda self: self.contexts)
    @rule(data=st.data(), ids=st.lists(st.integers(3, 300), min_size=1, max_size=40), wants_move=st.booleans())
    def adopt(self, data: st.DataObject, ids: list[int], wants_move: bool) -> None:
        source = data.draw(st.sampled_from(sorted(self.contexts)))
        keep = data.draw(st.integers(1, len(self.contexts[source])))
        move = wants_move and source not in self.sampling
        self.num_seqs += 1
        self.contexts[self.num_seqs] = [*self.contexts[source][:keep], *ids]
        self.bench.tell(Adopt(self.num_seqs, source, keep, move), Extend(self.num_seqs, keep, ids))
        if move:
            del self.contexts[source]
        self.begin(self.num_seqs, 3)

    @precondition(lambda self: self.has_rest)
    @rule(data=st.data(), max_tokens=st.integers(1, 9))
    def sample(self, data: st.DataObject, max_tokens: int) -> None:
        self.begin(data.draw(self.at_rest()), max_tokens)

    def begin(self, seq: int, max_tokens: int) -> None:
        self.num_jobs += 1
        self.sampling[seq] = self.num_jobs
        self.expected[self.num_jobs] = greedy(self.contexts[seq], max_tokens)
        self.bench.tell(sample(self.num_jobs, seq, max_tokens=max_tokens))

    @precondition(lambda self: self.sampling)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.sampling)))
        job = self.sampling.pop(seq)
        del self.expected[job]
        self.bench.tell(Stop(seq, job), Extend(seq, len(self.contexts[seq]), []))

    @precondition(lambda self: self.contexts)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.contexts)))
        self.bench.tell(Drop(seq))
        del self.contexts[seq]
        self.expected.pop(self.sampling.pop(seq, 0), None)

    @rule(num_steps=st.integers(1, 4))
    def work(self, num_steps: int) -> None:
        self.bench.run(num_steps)
        self.read()

    def read(self) -> None:
        """Take in what was said, as the server does."""
        for report in self.bench.reports[self.num_read :]:
            assert not isinstance(report, Failed)
            if isinstance(report, Sampled) and self.sampling.get(report.seq) == report.job:
                self.contexts[report.seq] += report.ids
            if isinstance(report, Finished) and self.sampling.get(report.seq) == report.job:
                del self.sampling[report.seq]
        self.num_read = len(self.bench.reports)

    def teardown(self) -> None:
        self.bench.run(10_000)
        self.read()
        assert not self.sampling
        for job, ids in self.expected.items():
            assert self.bench.sampled(job) == ids


def test_jobs_walk(guides):
    class Walk(JobsWalk):
        pass

    Walk.guides = guides
    run_state_machine_as_test(Walk, settings=settings(stateful_step_count=40))
