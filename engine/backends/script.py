"""The script backend: plays a scenario at its pace and says so. Nothing is inferred.

It is the model of the tests, of the latency and load benchmarks and of the comparison of the designs. Everything a
step emits is worked out when the step starts, so that a delta costs a slice of a list.
"""

from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec
import trio

from engine.backends.base import Delta, Extension, ModelInfo, RunSpec, StepEnd, StepSpec
from engine.backends.playback import Playback
from engine.backends.scenario import PREFIX
from engine.backends.scenario_values import Scenario, ScriptedUsage
from engine.backends.script_context import Context, EstimatedContext, Work
from engine.backends.script_take import NO_LIMIT, Ending, Limit, Take, take_step
from engine.errors import BackendError, NotFound, RequestError
from engine.items import Item
from engine.tokens import TokenLog
from engine.usage import Timing, Usage, count_usage

MAX_BATCH: Final = 16  # deltas given at once; other tasks run between two batches. Guessed, not measured


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

    def open_sequence(self, spec: RunSpec) -> "ScriptSequence":
        """A run at the start of the scenario named by `spec.model`, with or without `script:`.

        Settings of sampling mean nothing here and are taken as they are.
        Raises NotFound (`model_not_found`), and what `open_context` raises.
        """
        scenario = self._scenarios.get(PREFIX + spec.model.removeprefix(PREFIX))
        if scenario is None:
            known = ", ".join(self._scenarios)
            message = f"The model '{spec.model}' does not exist; this server plays {known}."
            raise NotFound(message, param="model", code="model_not_found")
        return ScriptSequence(scenario, spec, self._open_context(spec))


class ScriptSequence:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, spec: RunSpec, context: Context) -> None:
        self._spec = spec
        self._context = context
        self._window = scenario.context_window
        self._playback = Playback(scenario, spec.tools, parallel_calls=spec.parallel_tool_calls)
        self._num_new = 0  # tokens given since the last step
        self._step: _Step | None = None
        self._is_closed = False

    @property
    def tokens(self) -> TokenLog:
        return self._context.tokens

    @property
    def num_context_tokens(self) -> int:
        return self._context.num_tokens

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

    def commit(self, extension: Extension) -> None:
        items, inner = extension.payload
        self._context.commit(inner)
        self._num_new += extension.num_tokens
        self._playback.give(items)

    def start_step(self, step: StepSpec) -> None:
        """Work out the next step of the scenario. Raises ValueError while one is sampled or after `close`."""
        if self._step is not None or self._is_closed:
            raise ValueError("the sequence is closed" if self._is_closed else "a step is being sampled")
        self._context.open_turn()
        scripted, values = self._playback.next_step()
        take = take_step(scripted, values, self._spec.tools, step.tool_choice, self._limit(step))
        given = _Given(self._context.num_tokens, self._context.num_kept, self._num_new)
        self._step = _Step(take, scripted.usage, given)
        self._num_new = 0

    def _limit(self, step: StepSpec) -> Limit:
        limit = NO_LIMIT if step.max_tokens is None else Limit(step.max_tokens, "max_output_tokens")
        if self._window is None:
            return limit
        room = max(0, self._window - self._context.num_tokens)
        return limit if limit.num_tokens <= room else Limit(room, "context_length_exceeded")

    async def next_deltas(self) -> list[Delta]:
        """Up to 16 deltas that are due. Raises BackendError as the scenario says, ValueError without a step.

        When `cancel_step` or `close` comes meanwhile, what returns is a StepEnd with what was sampled so far.
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

    def _finish(self, step: "_Step") -> StepEnd:
        ending = step.take.ending
        self._settle(step)
        if isinstance(ending, BackendError):
            raise ending
        return step.end(ending)

    def _settle(self, step: "_Step") -> None:
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

    def close(self) -> None:
        self.cancel_step()
        self._is_closed = True


class _Given(NamedTuple):
    """Tokens that a step starts from: the whole context, what of it is reused, what the client has just given."""

    num_input: int
    num_kept: int
    num_new: int


class _Step:
    """One step being played: how far, since when, and what it may report."""

    def __init__(self, take: Take, usage: ScriptedUsage, given: _Given) -> None:
        self.take = take
        self.position = 0
        self._usage = usage
        self._given = given
        self._started_at = trio.current_time()
        self.num_sampled = 0  # tokens, known once the step is settled
        self._first_at: float | None = None
        self._sleep: trio.CancelScope | None = None

    async def wait_due(self) -> None:
        """Return when the next delta, or the end, is due. Always lets other tasks run."""
        take = self.take
        if take.dues is None:
            await trio.lowlevel.checkpoint()
            return
        due = take.dues[self.position] if self.position < len(take.deltas) else take.end_due
        with trio.CancelScope() as self._sleep:
            await trio.sleep_until(self._started_at + due)
        self._sleep = None

    def wake(self) -> None:
        """End a `wait_due` that is going on."""
        if self._sleep is not None:
            self._sleep.cancel()

    def due_deltas(self) -> list[Delta]:
        """The next deltas that are due, oldest first, at most 16."""
        take, start = self.take, self.position
        end = min(start + MAX_BATCH, len(take.deltas))
        if take.dues is not None and start < end:
            end = max(start + 1, bisect_right(take.dues, self._elapsed(), start, end))
        self.position = end
        if self._first_at is None:
            self._first_at = trio.current_time()
        return take.deltas[start:end]

    def _elapsed(self) -> float:
        # A nanosecond more, or rounding would leave out what the wait was for.
        return trio.current_time() - self._started_at + 1e-9

    def end(self, reason: Ending) -> StepEnd:
        """The StepEnd of what has been taken so far."""
        return StepEnd(reason, self._reported_usage(), self._timing())

    def _reported_usage(self) -> Usage:
        said, told = self._usage, self.take.count(self.position)
        counted = (self._given.num_input, self.num_sampled, self._given.num_kept, min(told[1], self.num_sampled))
        wanted = (said.input_tokens, said.output_tokens, said.cached_tokens, said.reasoning_tokens)
        num_input, num_output, num_cached, num_reasoning = (
            real if scripted is None else scripted for real, scripted in zip(counted, wanted, strict=True)
        )
        return count_usage(num_input, num_output, cached_tokens=num_cached, reasoning_tokens=num_reasoning)

    def _timing(self) -> Timing:
        now = trio.current_time()
        first_at = now if self._first_at is None else self._first_at
        return Timing(
            prefill_ms=(first_at - self._started_at) * 1000,
            sampling_ms=(now - first_at) * 1000,
            tokens_new=self._given.num_new,
            tokens_reused=self._given.num_kept,
            tokens_prefilled=self._given.num_input - self._given.num_kept,
        )
