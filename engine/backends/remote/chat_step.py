"""A step of a chat completion while it is sampled: what has come of it, how it ended and what it took.

Pure: times come in. What the service counted and measured is the account; where it did not, what was seen here is: a
token is four letters then.
"""

from typing import Final

from engine.backends.base import Delta, Reason, StepEnd
from engine.backends.remote.chat_calls import OpenCall
from engine.backends.remote.chat_context import CHARS_PER_TOKEN
from engine.backends.remote.chat_deltas import ChatParser
from engine.backends.remote.chat_turn import ChatTurn
from engine.backends.remote.told import plausible_count, plausible_ms
from engine.errors import BackendError
from engine.usage import Timing, Usage, count_usage

_REASONS: Final[dict[str, Reason]] = {"content_filter": "content_filter"}


class ChatStep:
    """A step under way.

    max_tokens: most tokens that it may sample. base: estimate of the context that it samples from; given: of what is
    new in it since the step before. began: now, in ms.
    """

    def __init__(self, turn: ChatTurn, *, max_tokens: int | None, base: int, given: int, began: float) -> None:
        self.turn = turn
        self._max_tokens = max_tokens
        self._base = base
        self._given = given
        self._began = began
        self._first_at: float | None = None
        self._error: BackendError | None = None
        self._is_over = False
        self._forced: Reason | None = None

    @property
    def parser(self) -> ChatParser:
        return self.turn.parser

    # --- what happens to it

    def heard(self, now: float) -> None:
        """Something has come."""
        self._first_at = now if self._first_at is None else self._first_at

    def answered(self) -> None:
        """The answer is whole."""
        self._is_over = True

    def ended(self, reason: Reason) -> None:
        """It is over without an answer."""
        self._is_over, self._forced = True, reason

    def failed(self, error: BackendError) -> None:
        """It cannot go on."""
        self._error = error

    # --- what comes of it

    def take(self, now: float) -> list[Delta]:
        """Deltas that have come since, then the end with what was held back. Empty when there is nothing to say yet.

        Raises BackendError when the step has failed.
        """
        if deltas := self.turn.take_deltas():
            return deltas
        if self._error is not None:
            raise self._error
        if not self._is_over:
            return []
        reason = self._reason()
        return [*self.parser.close(is_cut=reason != "stop"), self._end(reason, now)]

    def interrupt(self, now: float) -> list[Delta]:
        """All that is left to say, and the end. Raises BackendError when the step has failed."""
        deltas = self.turn.take_deltas()
        if self._error is not None:
            raise self._error
        return [*deltas, *self.parser.close(is_cut=self._is_cut), self._end("stop", now)]

    def finished_calls(self) -> list[OpenCall]:
        """The calls that have been said to their end."""
        return [call for call in self.parser.calls if call.name and (call.is_whole or not self._is_cut)]

    @property
    def _is_cut(self) -> bool:
        """Whether a call whose arguments are not whole has no end."""
        return not self._is_over or self._reason() != "stop"

    def _reason(self) -> Reason:
        if self._forced is not None:
            return self._forced
        if self.turn.finish_reason != "length":
            return _REASONS.get(self.turn.finish_reason or "", "stop")
        used = self._num_sampled
        return "max_output_tokens" if self._max_tokens and used >= self._max_tokens else "context_length_exceeded"

    # --- the account

    @property
    def _num_sampled(self) -> int:
        counts = self.turn.counts
        told = plausible_count(counts.completion_tokens) if counts is not None else None
        timings = self.turn.timings
        if told is None and timings is not None:
            told = plausible_count(timings.predicted_n)
        return self._estimate if told is None else told

    @property
    def _estimate(self) -> int:
        return -(-self._num_chars // CHARS_PER_TOKEN)

    @property
    def _num_chars(self) -> int:
        calls = self.parser.calls
        texts = [self.parser.text, self.parser.reasoning, *(call.name + call.arguments for call in calls)]
        return sum(map(len, texts))

    def usage(self) -> Usage:
        """Tokens of the prompt and of what was sampled."""
        counts, timings = self.turn.counts, self.turn.timings
        prompt, cached, reasoning = None, None, None
        if timings is not None:
            cached = plausible_count(timings.cache_n)
            new = plausible_count(timings.prompt_n)
            prompt = None if new is None else new + (cached or 0)
        if counts is not None:
            told = plausible_count(counts.prompt_tokens)
            prompt = prompt if told is None else told
            details, made = counts.prompt_tokens_details, counts.completion_tokens_details
            told = plausible_count(details.cached_tokens) if details else None
            cached = cached if told is None else told
            reasoning = plausible_count(made.reasoning_tokens) if made else None
        prompt, sampled = self._base if prompt is None else prompt, self._num_sampled
        if reasoning is None:  # its share of what was said
            reasoning = round(sampled * len(self.parser.reasoning) / max(self._num_chars, 1))
        return count_usage(
            prompt,
            sampled,
            cached_tokens=min(cached or 0, prompt),
            reasoning_tokens=min(reasoning, sampled),
        )

    def _end(self, reason: Reason, now: float) -> StepEnd:
        usage = self.usage()
        cached = usage.input_tokens_details.cached_tokens
        queue_ms, prefill_ms, sampling_ms = self._times(now)
        return StepEnd(
            reason,
            usage,
            Timing(
                queue_ms=queue_ms,
                prefill_ms=prefill_ms,
                sampling_ms=sampling_ms,
                tokens_new=self._given,
                tokens_reused=cached,
                tokens_prefilled=usage.input_tokens - cached,
            ),
        )

    def _times(self, now: float) -> tuple[float, float, float]:
        """Milliseconds in the queue, before the first token, and sampling: the service's own, or as seen from here."""
        times, timings = self.turn.times, self.turn.timings
        first_at = now if self._first_at is None else self._first_at
        queue_ms, prefill_ms, sampling_ms = 0.0, first_at - self._began, now - first_at
        if times is not None:
            told = (times.queue_time, times.prompt_time, times.completion_time)
            queue_ms, prefill_ms, sampling_ms = (plausible_ms(one, 1e3) or 0.0 for one in told)
        elif timings is not None:
            prompt_ms, predicted_ms = plausible_ms(timings.prompt_ms), plausible_ms(timings.predicted_ms)
            prefill_ms = prefill_ms if prompt_ms is None else prompt_ms
            sampling_ms = sampling_ms if predicted_ms is None else predicted_ms
        return queue_ms, prefill_ms, sampling_ms
