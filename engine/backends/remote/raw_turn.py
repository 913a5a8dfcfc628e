"""A step on a service that gives token ids: what is asked for, and what comes back, id for id.

Each request asks for what follows the ids that the log has by then, so a stream that broke is gone on with where it
broke: nothing is lost, nothing comes twice. The same mends a gap: llama.cpp's stream leaves out the ids of a character
that is not whole yet (it counts them, so the gap shows); then a few ids are asked for without a stream, which has all.

Where the model may call or give an answer of a certain format, the first ids say which it is: those of a call are kept,
others are asked for again, held to the format.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from engine.backends.base import RunSpec
from engine.backends.chance import Chance
from engine.backends.frames import Finished, Sample, Sampled
from engine.backends.remote.dialect import Ask, Chunk, Dialect, End
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.errors import BrokenStream, UpstreamError
from engine.backends.remote.hold import Hold
from engine.backends.remote.raw_prompt import RawPrompt
from engine.backends.remote.told import plausible_count, plausible_ms
from engine.clock import now_ms

_WHOLE_IDS: Final = 8  # asked for without a stream: more than the longest character, few enough to come soon
_MAX_SEED: Final = 1 << 31
_SEED_STEP: Final = 1_000_003


class Context(Protocol):
    """See `token_sequence.TokenSequence`."""

    number: int

    @property
    def num_context_tokens(self) -> int: ...
    @property
    def num_new_tokens(self) -> int: ...
    def ask(self, job: int) -> Sample: ...
    def on_sampled(self, report: Sampled) -> None: ...
    def on_finished(self, report: Finished) -> None: ...


class RawTurn:
    """A `link.Turn`; what comes is reported to `context` under the job's number."""

    def __init__(
        self,
        job: int,
        context: Context,
        prompt: RawPrompt,
        dialect: Dialect,
        spec: RunSpec,
        is_wanted: Callable[[], bool],
    ) -> None:
        """is_wanted: false once the step was stopped; what has been on its way then may belong to no step any more."""
        self.path = dialect.path
        self._job = job
        self._context = context
        self._prompt = prompt
        self._dialect = dialect
        self._spec = spec
        self._is_wanted = is_wanted
        self._base = context.num_context_tokens
        self._num_old = self._base - context.num_new_tokens
        self._began = now_ms()
        self._first_at: float | None = None
        self._end: End | None = None
        self._chunk = Chunk()  # the last that told of reused tokens and times
        self._is_reported = False
        self._num_requests = 0
        self._num_came = 0  # with the request under way
        self._is_streamed = True
        self._wants_whole = False
        self._num_looked_at = 0  # ids to look at; 0: there is nothing to decide (any more)
        asked = context.ask(job)
        self._hold = asked.constraint if isinstance(asked.constraint, Hold) else None
        self._stop_ids = asked.stop_ids
        if self._hold and self._hold.opening:
            self._num_looked_at = len(prompt.ids_of(self._hold.opening)) + 1
        # A lead of ours has none, and a text held to a schema has ones that mean something else.
        self._top_logprobs = asked.top_logprobs if self._hold is None else None
        self._num_lead = 0
        self._num_left = asked.max_tokens
        if self._hold and (lead := prompt.ids_of(self._hold.lead)[: self._num_left]):
            self._add(lead)
            self._num_lead = len(lead)
        if not self._num_left:
            self._end = "length"

    # --- for the link

    @property
    def num_taken(self) -> int:
        return self._context.num_context_tokens - self._base - self._num_lead

    @property
    def can_repeat(self) -> bool:
        """A service can hold a text to a schema, but not the rest of one."""
        return self._hold is None or self._hold.schema is None or not self.num_taken

    @property
    def is_answered(self) -> bool:
        return self._end is not None or not self._is_wanted()

    async def body(self, encoding: Encoding) -> bytes:
        spec = self._spec
        self._is_streamed, self._wants_whole = not (self._wants_whole or self._num_looked_at), False
        self._num_came = 0
        self._num_requests += 1
        ask = Ask(
            model=spec.model,
            max_tokens=self._num_left if self._is_streamed else min(self._num_left, self._num_looked_at or _WHOLE_IDS),
            stop_ids=self._stop_ids,
            temperature=spec.temperature,
            top_p=spec.top_p,
            seed=self._seed(),
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
            cache_key=self._prompt.cache_key,
            schema=self._hold.schema if self._hold and not self._num_looked_at else None,
            top_logprobs=self._top_logprobs,
        )
        return await self._prompt.body(encoding, self._dialect.fields(ask, stream=self._is_streamed))

    def take(self, events: Sequence[bytes]) -> bool:
        if not self._is_wanted():
            return True
        ids: list[int] = []
        chances: list[Chance] = []
        is_over = False
        for event in events:
            try:
                chunk = self._dialect.read(event)
                if chunk.has_lost_ids:
                    raise BrokenStream("text came without its ids")
            except UpstreamError:
                self._keep(ids, chances)
                raise
            if chunk.num_told is not None and chunk.num_told != self._num_came + len(chunk.ids):
                self._wants_whole = is_over = True
                break
            if self._end is not None and chunk.ids:  # the service does not know where the model's turn ends
                is_over = True
                break
            self._num_came += len(chunk.ids)
            ids += chunk.ids
            chances += chunk.chances or ()
            if self._note(chunk):
                is_over = True
                break
        if self._num_looked_at:
            return self._decide(ids)
        self._sampled(ids, chances)
        if is_over and self._end is not None:
            self.finish()
        return is_over

    def _decide(self, ids: list[int]) -> bool:
        """Keep what a call begins with; anything else will be another answer."""
        assert self._hold is not None
        self._num_looked_at = 0
        said = self._prompt.text_of(ids).lstrip()
        if said and (said.startswith(self._hold.opening) or self._hold.opening.startswith(said)):
            self._hold = None
            self._sampled(ids, [])
        else:
            self._end = None
        if self._end is not None:
            self.finish()
        return True

    def _keep(self, ids: list[int], chances: list[Chance]) -> None:
        """What came at once with an error, and before it: the turn's end may be there. What was only looked at goes."""
        if self._num_looked_at:
            self._end = None
        else:
            self._sampled(ids, chances)

    def _note(self, chunk: Chunk) -> bool:
        """Whether the request is over with this."""
        if chunk.num_cached is not None or chunk.times is not None:
            self._chunk = chunk
        if chunk.end is not None and (chunk.end != "length" or self._is_streamed):
            self._end = chunk.end
        if not self._is_streamed and chunk.is_last and not self._num_came:
            raise BrokenStream("no ids came")
        return chunk.is_last or (self._end is not None and chunk.num_cached is not None)

    def _sampled(self, ids: list[int], told: list[Chance]) -> None:
        chances = told if self._top_logprobs is not None and len(told) == len(ids) else None
        stop = next((index for index, token_id in enumerate(ids) if token_id in self._stop_ids), None)
        if stop is not None:
            ids = ids[: stop + 1]
            self._end = "stop"
        if self._hold and self._hold.schema is not None:  # what ends it there is not what ends a turn
            ids = [token_id for token_id in ids if not self._prompt.is_control(token_id)]
        if ids := ids[: self._num_left]:
            self._first_at = self._first_at or now_ms()
            self._add(ids, None if chances is None else [self._cut(chance) for chance in chances[: len(ids)]])
        if not self._num_left:
            self._end = self._end or "length"

    def _cut(self, chance: Chance) -> Chance:
        """With no more of the likeliest than were asked for: services may tell one more."""
        return Chance(chance.logprob, chance.top[: self._top_logprobs])

    def _add(self, ids: list[int], chances: list[Chance] | None = None) -> None:
        self._num_left -= len(ids)
        self._context.on_sampled(Sampled(self._context.number, self._job, ids, chances))

    # --- the end

    def finish(self) -> None:
        """Report the end, once. To be called when the turn is answered."""
        if self._is_reported or not self._is_wanted():
            return
        self._is_reported = True
        context, now = self._context, now_ms()
        end: End = self._end or "length"
        if end == "stop" and self._hold and self._hold.tail:
            context.on_sampled(Sampled(context.number, self._job, self._prompt.ids_of(self._hold.tail)))
        first_at = now if self._first_at is None else self._first_at
        reused, times = self._num_reused(), self._chunk.times
        context.on_finished(
            Finished(
                context.number,
                self._job,
                end,
                reused=reused,
                prefilled=self._base - reused,
                queue_ms=plausible_ms(times.queue_ms) or 0.0 if times else 0.0,
                prefill_ms=plausible_ms(times.prefill_ms) or 0.0 if times else first_at - self._began,
                sampling_ms=plausible_ms(times.sampling_ms) or 0.0 if times else now - first_at,
            )
        )

    def _num_reused(self) -> int:
        """Of the context at the step's beginning. A second request finds what the first has computed of what is new."""
        reused = min(plausible_count(self._chunk.num_cached) or 0, self._base)
        return reused if self._num_requests < 2 else min(reused, self._num_old)

    def _seed(self) -> int | None:
        """Another one at each place of the context, or every request would draw the same numbers."""
        seed = self._spec.seed
        return None if seed is None else (seed * _SEED_STEP + self._context.num_context_tokens) % _MAX_SEED
