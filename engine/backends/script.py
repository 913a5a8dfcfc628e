"""The script backend: plays a scenario at its pace and says so. Nothing is inferred.

It is the model of the tests, of the latency and load benchmarks and of the comparison of the designs. Everything a
step emits is worked out when the step starts, so that a delta costs a slice of a list. Where nothing is inferred there
are no probabilities: asked for, they are left out, not made up.
"""

import copy
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from types import TracebackType
from typing import Self

import msgspec
import trio

from engine.backends.base import Delta, Extension, ModelInfo, Past, Route, RunSpec, StepEnd, StepSpec, ToolChoice
from engine.backends.playback import Playback
from engine.backends.rate_limit import RateLimit
from engine.backends.scenario import PREFIX
from engine.backends.scenario_values import Scenario
from engine.backends.script_context import Context, EstimatedContext, Work
from engine.backends.script_step import Given, Step
from engine.backends.script_take import NO_LIMIT, Limit, take_step
from engine.errors import BackendError, NotFound, RequestError
from engine.items import Answer, Item
from engine.tokens import TokenLog


class ScriptBackend:
    """Serves one model per scenario. The first is the default."""

    def __init__(
        self, scenarios: ListOf[Scenario], open_context: Callable[[RunSpec], Context] = EstimatedContext
    ) -> None:
        """open_context: how a run's tokens are counted; it may raise RequestError.

        Raises ValueError when there is no scenario, or two have the same model name.
        """
        self._open_context = open_context
        self._scenarios = {scenario.model: scenario for scenario in scenarios}
        if not scenarios or len(self._scenarios) != len(scenarios):
            raise ValueError("the script backend needs scenarios with different model names")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()

    def models(self) -> list[ModelInfo]:
        """`script:<name>`, owned by `script`. `created` is 0: they have no date."""
        return [ModelInfo(model, 0, owned_by="script") for model in self._scenarios]

    def resolve(self, model: str | None) -> Route:
        """See base. A scenario's name is taken with and without `script:`."""
        names = list(self._scenarios)
        name = names[0] if model is None else PREFIX + model.removeprefix(PREFIX)
        if name not in self._scenarios:
            message = f"The model '{model}' does not exist; this server plays {', '.join(names)}."
            raise NotFound(message, param="model", code="model_not_found")
        return Route(id=name)

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        return ()

    def open_sequence(self, spec: RunSpec) -> "ScriptSequence":
        """A run at the start of the scenario named by `spec.model`, with or without `script:`.

        Settings of sampling mean nothing here and are taken as they are.
        Raises NotFound (`model_not_found`), and what `open_context` raises.
        """
        scenario = self._scenarios[self.resolve(spec.model).id]
        return ScriptSequence(scenario, spec, self._open_context(spec))


class ScriptSequence:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, spec: RunSpec, context: Context) -> None:
        self._scenario = scenario
        self._spec = spec
        self._context = context
        self._window = scenario.context_window
        self._playback = Playback(scenario, spec.tools, parallel_calls=spec.parallel_tool_calls)
        self._num_new = 0  # tokens given since the last step
        self._is_restarted = False  # what is committed next has been heard already
        self._step: Step | None = None
        self._is_closed = False

    @property
    def tokens(self) -> TokenLog:
        return self._context.tokens

    @property
    def num_context_tokens(self) -> int:
        return self._context.num_tokens

    @property
    def num_turn_tokens(self) -> int:
        return self._context.num_turn_tokens

    @property
    def work(self) -> Work:
        """Items and tokens that all `prepare` calls have touched."""
        return self._context.work

    async def prepare(self, items: ListOf[Item]) -> Extension:
        extension = await self._context.prepare(items)
        length = self._context.length_with(extension)
        if self._window is not None and length >= self._window:  # one token at least has to be sampled
            raise RequestError(
                f"This model's context has {self._window} tokens. The input would make it {length}; shorten it.",
                code="context_length_exceeded",
            )
        return msgspec.structs.replace(extension, payload=(list(items), extension))

    async def foresee(self, outputs: ListOf[Answer]) -> None:
        """See base. There is nothing to compute early."""
        await trio.lowlevel.checkpoint()

    def commit(self, extension: Extension) -> None:
        items, inner = extension.payload
        self._context.commit(inner)
        self._num_new += extension.num_tokens
        if not self._is_restarted:
            self._playback.give(items)
        self._is_restarted = False

    def start_step(self, step: StepSpec) -> None:
        """Work out the next step of the scenario. Raises ValueError while one is sampled or after `close`."""
        self._expect_rest()
        self._context.open_turn()
        choice = ToolChoice("none") if step.is_summary else step.tool_choice
        if step.is_summary:
            scripted, values = self._scenario.summary, self._playback.values()
        else:
            scripted, values = self._playback.next_step()
        take = take_step(scripted, values, self._spec.tools, choice, self._limit(step))
        given = Given(self._context.num_tokens, self._context.num_kept, self._num_new)
        self._step = Step(take, scripted.usage, given)
        self._num_new = 0

    def _expect_rest(self) -> None:
        if self._step is not None or self._is_closed:
            raise ValueError("the sequence is closed" if self._is_closed else "a step is being sampled")

    def _limit(self, step: StepSpec) -> Limit:
        limit = NO_LIMIT if step.max_tokens is None else Limit(step.max_tokens, "max_output_tokens")
        if self._window is None:
            return limit
        room = max(0, self._window - self._context.num_tokens)
        return limit if limit.num_tokens <= room else Limit(room, "context_length_exceeded")

    async def next_deltas(self) -> list[Delta]:
        """The first delta alone, then up to 16 that are due.

        Raises BackendError as the scenario says, ValueError without a step. When `cancel_step` or `close` comes
        meanwhile, what returns is a StepEnd with what was sampled so far.
        """
        step = self._step
        if step is None:
            raise ValueError("no step is being sampled")
        await step.wait_due()
        if self._step is not step:  # cancelled while waiting; it has been settled already
            return [step.end("stop")]
        batch = step.due_deltas()
        # The end comes alone: what it takes (counting what was sampled, or failing) must not hold up the last deltas.
        return batch or [self._finish(step)]

    def _finish(self, step: Step) -> StepEnd:
        ending = step.take.ending
        self._settle(step)
        if isinstance(ending, BackendError):
            raise ending
        return step.end(ending)

    def _settle(self, step: Step) -> None:
        """Keep in the context what the step has sampled; the step is over."""
        self._step = None
        take, position = step.take, step.position
        is_whole = position == len(take.deltas) and take.ending == "stop"
        num_before = self._context.num_tokens
        self._context.sampled(take.deltas[:position], take.count(position)[0], is_whole=is_whole)
        # With a tokenizer that is ids, not pieces, so that usage agrees with the token log.
        step.num_sampled = self._context.num_tokens - num_before

    def cancel_step(self) -> None:
        """Stop. What was sampled stays in the context. Does nothing when no step is being sampled."""
        if step := self._step:
            self._settle(step)
            step.wake()

    def interrupt(self) -> list[Delta]:
        """Stop, as `cancel_step` does: what a scripted model has sampled is what it has given."""
        step = self._step
        if step is None:
            raise ValueError("no step is being sampled")
        self.cancel_step()
        return [step.end("stop")]

    def fork(self, response_id: str) -> Self:
        self._expect_rest()
        twin = copy.copy(self)
        twin._spec = msgspec.structs.replace(self._spec, response_id=response_id)
        twin._context = self._context.fork()
        twin._playback = self._playback.fork()
        return twin

    def restart(self) -> None:
        self._expect_rest()
        self._context.restart()
        self._num_new = 0
        self._is_restarted = True

    def restore(self, past: Past) -> None:
        """See base. The scenario is brought to the same place by giving the rounds and taking the steps."""
        self._expect_rest()
        self._context.restore(past)
        for items in past.rounds:
            self._playback.give(items)
            self._playback.next_step()

    def close(self) -> None:
        self.cancel_step()
        self._is_closed = True
