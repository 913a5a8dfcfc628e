"""A judge whose model is in a worker process of its own: what a model does to its process does nothing to the server.

When the worker dies, all that was asked is lost at once and counts as failed; the link starts another. One that has
said nothing for as long as an answer may take hangs, and is killed.
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from engine.backends.pretrained import resolve
from engine.backends.worker_link import WorkerLink
from engine.errors import BackendError
from engine.safety.frames import Forget, Report, Score, Scored, Up, report_reader
from engine.safety.policies import Scores

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]


class _Asked(NamedTuple):
    """Who waits, and how many reports there had been when this was asked."""

    on_scores: Callable[[Scores | None], None]
    num_reports: int


class ModelJudge:
    """A Judge (see judge.py). Made by `open_model_judge`."""

    def __init__(self, model: str, labels: Collection[str], link: WorkerLink[Up, Report]) -> None:
        """labels: that the policies ask for."""
        self._model = model
        self._wanted = frozenset(labels)
        self._link = link
        self._missing: frozenset[str] = frozenset()
        self._num_asked = 0
        self._num_reports = 0
        self._waiting: dict[int, _Asked] = {}

    @property
    def is_ready(self) -> bool:
        return self._link.is_up and not self._missing

    async def wait_ready(self) -> None:
        """See Judge. Raises BackendError also for a model that lacks a label which a policy asks for."""
        up = await self._link.wait_up()
        if self._missing:
            raise BackendError(
                f"The model {self._model} has no label {min(self._missing)!r}; it has {', '.join(up.labels)}."
            )

    def ask(self, text: str, on_scores: Callable[[Scores | None], None]) -> int:
        self._num_asked += 1
        number = self._num_asked
        if self.is_ready:
            self._waiting[number] = _Asked(on_scores, self._num_reports)
            self._link.send([Score(number, text)])
        else:
            on_scores(None)
        return number

    def withdraw(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self._link.send([Forget(number)])

    def give_up(self, number: int) -> None:
        if (asked := self._waiting.pop(number, None)) is None:
            return
        if asked.num_reports == self._num_reports:
            self._link.kill()
        else:
            self._link.send([Forget(number)])

    # --- for the link (see worker_link.Owner)

    def worker_up(self, ready: Up) -> None:
        """The model is loaded. One without the labels that are asked for would let everything pass."""
        self._missing = self._wanted.difference(ready.labels)
        if self._missing:
            log.error("the model %s has no label %r", self._model, min(self._missing))

    def worker_down(self, reason: str, *, was_up: bool) -> None:
        """What was asked is lost."""
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.on_scores(None)

    def worker_said(self, report: Report) -> None:
        """The scores of a text; of one that was withdrawn they come too late."""
        self._num_reports += 1
        if isinstance(report, Scored) and (asked := self._waiting.pop(report.number, None)):
            asked.on_scores(report.scores)


@asynccontextmanager
async def open_model_judge(
    model: str,
    labels: Collection[str],
    *,
    threads: int = 1,
    worker: Sequence[str] = (sys.executable, "-m", "engine.safety.worker"),
    progress: Progress = lambda what, fraction: None,
) -> AsyncIterator[ModelJudge]:
    """The judge, once its model is on this machine; the worker loads it meanwhile.

    model: a folder, or an id of the Hugging Face hub. worker: the command that becomes one. Raises ModelNotAvailable.
    """
    folder = await trio.to_thread.run_sync(resolve, model, progress)
    link = WorkerLink([*worker, str(folder), "--threads", str(threads)], progress, Up, report_reader)
    judge = ModelJudge(model, labels, link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, judge)
        yield judge
        nursery.cancel_scope.cancel("the server stops")
