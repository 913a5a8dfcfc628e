"""One sampling step in the worker: what it drew, what its grammar forces, when it ends and where its time went."""

from typing import Literal

from engine.backends.chance import Chance
from engine.backends.context import Context
from engine.backends.frames import Finished, Sample
from engine.backends.guide import Guides
from engine.backends.sampling import Penalties, Row, Sampler, chance_of


class Job:
    """One sampling step on a context; knows its own ids, its grammar's state and where its time went."""

    def __init__(self, ask: Sample, context: Context, guides: Guides, now: float) -> None:
        """Raises GrammarError."""
        self.ask = ask
        self.context = context
        self.num_left = ask.max_tokens
        self.sampler = Sampler(ask.temperature, ask.top_p, ask.presence_penalty, ask.frequency_penalty, ask.seed)
        self.penalties = Penalties(self.sampler)
        hands_out = ask.top_logprobs is None
        self.guide = guides.guide(ask.constraint, hands_out=hands_out) if ask.constraint else None
        self.chances: list[Chance] | None = None  # of the ids drawn last, where they are wanted
        self._trial: tuple[int, Row] | None = None  # an id in the context on approval, and the row before it
        context.crop(len(context.ids) - 1)  # the last id must go through the model, or there is no row to draw from
        self.reused = context.num_held - context.num_early  # what was computed early for this job is new to it
        self.prefilled = len(context.ids) - self.reused
        context.num_early = context.num_missed = 0
        self.began = now
        self.fed: float | None = None
        self.drew: float | None = None

    def start(self) -> list[int]:
        """Ids that the grammar forces before the first draw. Raises GrammarError."""
        own = self.context.ids[len(self.context.ids) - self.ask.num_sampled :]
        self.penalties.count(own)
        return self._noted(self.guide.start(own)) if self.guide else []

    def draw(self, row: Row) -> list[int]:
        """The next id, and those forced after it; none while an id is tried. Changes `row`.

        Raises GrammarError, ValueError.
        """
        if self._trial is not None:
            return self._settle(*self._trial, row)
        if self.guide and (trial := self.guide.trial(row)) is not None:
            self._trial = trial, row.copy()
            self.context.ids.append(trial)
            return []
        return self._draw(row)

    def _settle(self, trial: int, before: Row, row: Row) -> list[int]:
        """What comes after a trial: it and what follows, or something else in its place."""
        assert self.guide is not None
        if not self.guide.settle(row):
            self.take_back()
            return self._draw(before)
        self._trial = None
        ids = self._noted([trial, *self.guide.advance(trial)])
        if len(ids) == 1:
            ids += self._draw(row)
        if self.ask.top_logprobs is not None:
            self.chances = [chance_of(before, trial, self.ask.top_logprobs), *(self.chances or ())]
        self.context.ids.pop()  # it comes back with the others
        return ids

    def take_back(self) -> None:
        """Forget an id that is being tried, if one is."""
        if self._trial is not None:
            self._trial = None
            self.context.cut(len(self.context.ids) - 1)

    def _draw(self, row: Row) -> list[int]:
        made = None if self.ask.top_logprobs is None else row.copy()
        if self.guide:
            self.guide.restrict(row)
        self.penalties.apply(row)
        drawn = self.sampler.draw(row, len(self.context.ids))
        if made is not None:
            self.chances = [chance_of(made, drawn, self.ask.top_logprobs or 0)]
        return self._noted([drawn, *(self.guide.advance(drawn) if self.guide else ())])

    def _noted(self, ids: list[int]) -> list[int]:
        self.penalties.count(ids)
        return ids

    def keep(self, ids: list[int]) -> list[int]:
        """Append what of `ids` fits before the end of the job; returns that."""
        stop = next((index + 1 for index, id_ in enumerate(ids) if id_ in self.ask.stop_ids), len(ids))
        kept = ids[: min(stop, self.num_left)]
        self.context.ids += kept
        self.num_left -= len(kept)
        return kept

    @property
    def end(self) -> Literal["stop", "length"] | None:
        """Why the job is over, None while it is not."""
        has_sampled = self.ask.num_sampled > 0 or self.num_left < self.ask.max_tokens
        if has_sampled and self.context.ids[-1] in self.ask.stop_ids:
            return "stop"
        return "length" if self.num_left <= 0 else None

    def finished(self, now: float) -> Finished:
        """The report of the end. A job that needed no step of the model has no times."""
        fed = self.fed if self.fed is not None else now
        drew = self.drew if self.drew is not None else now
        return Finished(
            self.ask.seq,
            self.ask.job,
            self.end or "length",
            self.reused - self.context.num_missed,
            0 if self.fed is None else self.prefilled + self.context.num_missed,
            queue_ms=1e3 * (fed - self.began),
            prefill_ms=1e3 * (drew - fed),
            sampling_ms=1e3 * (now - drew),
        )
