"""admission.py: whose step may run within the KV budget, by tables and random walks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.backends.admission import Admission


def asked(max_tokens: int, *sizes: int) -> Admission:
    admission = Admission(max_tokens)
    for job, size in enumerate(sizes):
        admission.ask(job, size)
    return admission


def test_as_many_run_as_fit_with_room_to_grow():
    admission = asked(1000, 400, 400, 400)
    assert admission.admit() == [0, 1]
    assert (admission.num_running, admission.num_waiting) == (2, 1)
    admission.end(0)
    assert admission.admit() == [2]


def test_one_always_runs():
    admission = asked(10, 5000, 1)
    assert admission.admit() == [0]
    assert admission.outgrown() == []
    admission.end(0)
    assert admission.admit() == [1]


def test_nobody_overtakes():
    admission = asked(1000, 600, 600, 1)
    assert admission.admit() == [0]


def test_the_last_one_goes_back_when_they_have_outgrown_the_budget():
    admission = asked(1000, 300, 300, 200, 700)
    assert admission.admit() == [0, 1, 2]
    admission.grown(0, 550)
    assert admission.outgrown() == [2]
    admission.ask_again(2, 210)
    assert admission.admit() == []  # it would fill the budget to the brim
    admission.end(1)
    assert admission.admit() == [2]


def test_who_waits_no_more_is_forgotten():
    admission = asked(80, 10, 10, 10)
    admission.admit()
    admission.end(1)
    admission.end(77)
    admission.grown(1, 5000)
    admission.end(0)
    assert admission.admit() == [2]


def test_a_smaller_budget_sends_back():
    admission = asked(1000, 300, 300)
    admission.admit()
    admission.set_budget(400)
    assert admission.outgrown() == [1]


def test_a_dead_worker_runs_nothing():
    admission = asked(1000, 300, 3000)
    admission.admit()
    admission.clear()
    assert (admission.num_running, admission.num_waiting, admission.admit()) == (0, 0, [])


class AdmissionWalk(RuleBasedStateMachine):
    """Against a model that knows each job's size and counts afresh."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(1000)
        self.sizes: dict[int, int] = {}
        self.running: list[int] = []
        self.line: list[int] = []

    @rule(size=st.integers(1, 1500))
    def ask(self, size: int) -> None:
        job = len(self.sizes)
        self.sizes[job] = size
        self.line.append(job)
        self.admission.ask(job, size)
        self.admit()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(1, 300))
    def grow(self, data: st.DataObject, more: int) -> None:
        job = data.draw(st.sampled_from(self.running))
        self.sizes[job] += more
        self.admission.grown(job, self.sizes[job])
        for back in self.admission.outgrown():
            assert back == self.running.pop()
            self.line.insert(0, back)
            self.admission.ask_again(back, self.sizes[back])

    @precondition(lambda self: self.running or self.line)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from([*self.running, *self.line]))
        (self.running if job in self.running else self.line).remove(job)
        self.admission.end(job)
        self.admit()

    def admit(self) -> None:
        for job in self.admission.admit():
            assert job == self.line.pop(0)
            self.running.append(job)

    @invariant()
    def the_budget_holds_and_somebody_runs(self) -> None:
        assert len(self.running) <= 1 or sum(map(self.sizes.__getitem__, self.running)) <= 1000
        assert self.running or not self.line
        assert (self.admission.num_running, self.admission.num_waiting) == (len(self.running), len(self.line))


AdmissionWalk.TestCase.settings = settings(stateful_step_count=40)
TestAdmissionWalk = AdmissionWalk.TestCase
