"""Many runs on one local backend at once, and everything that can happen to them, chosen by a seed.

Whatever happened, a run's token log says what the model saw and what it drew from that; `logs` are for replaying.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import trio

from engine.backends.base import Past, RunSpec, StepEnd, StepSpec
from engine.backends.local import LocalBackend
from engine.backends.token_sequence import TokenSequence
from engine.errors import BackendError
from engine.items import FunctionCallOutput
from engine.tokens import TokenLog
from tests.local_model import message, spec

MAX_IDS = 280  # ids up to here are ordinary ones of the tests' tokenizer


@dataclass
class Outcome:
    """What became of the runs. `logs`: of each, with the spec that it was sampled under."""

    logs: list[tuple[RunSpec, TokenLog]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    num_lost: int = 0

    def note(self, what: str) -> None:
        self.ended[what] = self.ended.get(what, 0) + 1


class Chaos:
    """Runs of a few turns each; after every `steps_per_kill` steps of all together the worker is killed."""

    def __init__(self, backend: LocalBackend, kill: Callable[[], None], seed: int, *, steps_per_kill: int) -> None:
        self._backend = backend
        self._kill = kill
        self._seed = seed
        self._steps_per_kill = steps_per_kill
        self._num_steps = 0
        self.outcome = Outcome()

    async def play(self, num_runs: int, num_turns: int, temperatures: tuple[float, ...]) -> Outcome:
        """All runs at once. Those with the same remainder modulo 5 begin alike."""
        async with trio.open_nursery() as nursery:
            for number in range(num_runs):
                rng = Random(f"{self._seed}:{number}")
                of_run = spec(temperature=temperatures[number % len(temperatures)], seed=number)
                nursery.start_soon(self._run, rng, of_run, number % 5, num_turns)
        return self.outcome

    async def _run(self, rng: Random, of_run: RunSpec, kind: int, num_turns: int) -> None:
        sequence = self._backend.open_sequence(of_run)
        given = [3 + kind, *range(20, 20 + 12 * (kind + 1))]  # what runs of this kind share
        for _ in range(num_turns):
            given += [rng.randrange(3, MAX_IDS) for _ in range(rng.randrange(1, 40))]
            if rng.random() < 0.4:
                await self._foresee(rng, sequence, given)
            for _ in range(rng.randrange(20)):  # others go first
                await trio.lowlevel.checkpoint()
            sequence.commit(await sequence.prepare([message(given)]))
            given = []
            try:
                await self._step(rng, sequence)
            except BackendError:  # it lost two workers, and is over
                self.outcome.num_lost += 1
                break
            sequence = self._between_steps(rng, sequence, of_run)
        self.outcome.logs.append((of_run, sequence.tokens))
        sequence.close()

    async def _foresee(self, rng: Random, sequence: TokenSequence, given: list[int]) -> None:
        right = given[: rng.randrange(1, len(given) + 1)]
        guess = [*right, *(rng.randrange(3, MAX_IDS) for _ in range(rng.randrange(40)))]
        await sequence.foresee([FunctionCallOutput(call_id="c", output=" ".join(map(str, guess)))])

    async def _step(self, rng: Random, sequence: TokenSequence) -> None:
        sequence.start_step(StepSpec(max_tokens=rng.randrange(1, 25)))
        patience = rng.randrange(1, 6) if rng.random() < 0.3 else 1000
        for _ in range(patience):
            if isinstance((await sequence.next_deltas())[-1], StepEnd):
                self.outcome.note("finished")
                break
        else:
            if rng.random() < 0.5:
                sequence.cancel_step()
                self.outcome.note("cancelled")
            else:
                sequence.interrupt()
                self.outcome.note("interrupted")
        self._num_steps += 1
        if self._num_steps % self._steps_per_kill == 0:
            self._kill()

    def _between_steps(self, rng: Random, sequence: TokenSequence, of_run: RunSpec) -> TokenSequence:
        """The sequence that the run goes on with, often another one."""
        happens = rng.random()
        if happens < 0.15:
            twin = sequence.fork("resp_2")
            sequence.close()
            self.outcome.note("forked")
            return twin
        if happens < 0.25:
            spans = list(sequence.tokens.since(0))
            sequence.close()
            twin = self._backend.open_sequence(of_run)
            twin.restore(Past(spans=spans, rounds=[], num_tokens=0))
            self.outcome.note("restored")
            return twin
        if happens < 0.35:
            sequence.restart()
            self.outcome.note("restarted")
        return sequence
