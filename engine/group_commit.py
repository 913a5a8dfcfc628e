"""A database with a thread of its own: a queue into it, and commits in groups.

The queue is the order of everything, and one connection does all of it, so what was put is seen by whatever is asked
later, committed or not. The first put opens a window; when it is over, or somebody asks for something meanwhile, the
thread takes all that is queued into one transaction. An event loop that puts something spends some microseconds on it,
and wakes the thread once a window.

A transaction that fails is tried again job by job, so that only those are lost which really cannot be written. When a
disk does not keep up, or hangs, what has no room in the queue is lost; whoever puts it goes on.

After a loss the thread tries whether anything can be written, again and again until it can: `failure` says why not,
and goes away by itself, whether or not somebody puts something meanwhile.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from engine.errors import EngineError, ServerError

log = logging.getLogger(__name__)
_NO_LIMIT: Final = 1 << 62
_TRIAL_BYTES: Final = 1 << 16  # a step of a usual run
_MAX_TRIAL_BYTES: Final = 1 << 24


class Transactions(Protocol):
    """What a database must have for this; all of it may raise but `rollback`."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def try_to_write(self, num_bytes: int) -> None: ...
    def close(self) -> None: ...


_D = TypeVar("_D", bound=Transactions)
_T = TypeVar("_T")


@asynccontextmanager
async def open_group_commit(
    name: str, database: _D, commit_ms: int, max_bytes: int = _NO_LIMIT, retry_s: float = 10
) -> AsyncIterator["GroupCommit[_D]"]:
    """The thread lives as long as the block. Leaving it, cancelled or not, writes all that was put.

    name: what errors and the log call it. commit_ms: what was put is committed after this at the latest. max_bytes: no
    more than this waits to be written. retry_s: from one trial of a disk that fails to the next.
    """
    group_commit = GroupCommit(name, database, commit_ms, max_bytes, retry_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, group_commit)
        try:
            yield group_commit
        finally:
            group_commit.stop()  # cancellation does not end the thread; this does, when it has written everything


async def _serve(group_commit: "GroupCommit[Any]") -> None:
    with trio.CancelScope(shield=True):  # until `stop`; a thread does not heed cancellation, but must have been started
        serve, limiter = group_commit.serve, trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(serve, thread_name=group_commit.name, limiter=limiter)


class _Job:
    """Something for the thread to do. `lost_with` names what is lost when a put fails; who asks hears of a failure."""

    __slots__ = ("act", "answered", "error", "lost_with", "num_bytes", "value")

    def __init__(self, act: Callable[[Any], Any], lost_with: str | None = None, num_bytes: int = 0) -> None:
        self.act = act
        self.lost_with = lost_with
        self.num_bytes = num_bytes
        self.answered = trio.Event() if lost_with is None else None
        self.value: Any = None
        self.error: EngineError | None = None


class GroupCommit(Generic[_D]):
    """The queue; `serve` is the thread's whole life."""

    def __init__(self, name: str, database: _D, commit_ms: int, max_bytes: int, retry_s: float) -> None:
        self.name = name
        self.failure: str | None = None  # why nothing can be written, as far as is known
        self._database = database
        self._commit_s = commit_ms / 1000
        self._max_bytes = max_bytes
        self._retry_s = retry_s
        self._trial_at: float | None = None  # monotonic; None: nothing is known against the disk
        self._trial_bytes = _TRIAL_BYTES
        self._num_put = self._num_done = 0  # bytes; the thread adds to the second one alone
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._somebody_waits = Event()
        self._is_open = True
        self._lost: set[str] = set()  # both sides add to it and look into it, neither goes through it

    def put(self, key: str, act: Callable[[_D], None], num_bytes: int = 0) -> None:
        """Write something, later. When it cannot be written nothing more with that key is; the log says so.

        num_bytes: what it takes in the queue.
        """
        if key in self._lost:
            return
        waiting = self._num_put - self._num_done
        if waiting + num_bytes > self._max_bytes:
            log.error("the %s lost %s: its disk does not keep up, %d bytes wait to be written", self.name, key, waiting)
            self._lost.add(key)
            self.failure = "its disk does not keep up"
            self._doubt(num_bytes)
            self._enqueue(_Job(_nothing))  # the trial, once the thread has done what is queued
            return
        self._num_put += num_bytes
        self._enqueue(_Job(act, key, num_bytes))

    async def ask(self, act: Callable[[_D], _T]) -> _T:
        """What `act` returns, after all that was put before. Raises its EngineError, or a ServerError."""
        job = _Job(act)
        self._enqueue(job)
        self._somebody_waits.set()
        assert job.answered is not None
        await job.answered.wait()
        if job.error is not None:
            raise job.error
        value: _T = job.value
        return value

    @property
    def has_lost(self) -> bool:
        """Whether anything that was put could not be written."""
        return bool(self._lost)

    async def wait_durable(self) -> None:
        """Wait until all that was put so far is on disk, or lost. Raises ServerError when the disk fails."""
        await self.ask(_nothing)

    def expect(self, key: str) -> str:
        """The key. For acts: raises ServerError when something put with it was lost."""
        if key in self._lost:
            raise ServerError(f"The {self.name} failed.")
        return key

    def _enqueue(self, job: _Job) -> None:
        if not self._is_open:
            raise ValueError(f"the {self.name} is closed")
        self._queue.put(job)

    def stop(self) -> None:
        """Take no more; `serve` returns when what was put is written."""
        self._is_open = False
        self._queue.put(None)
        self._somebody_waits.set()

    # --- the thread ---

    def serve(self) -> None:
        """Do what comes through the queue, until `stop`."""
        is_over = False
        while not is_over:
            taken = self._take()
            is_over = None in taken
            jobs = [job for job in taken if job is not None]
            if jobs:
                self._do(jobs)
            if self._trial_at is not None and self._trial_at <= time.monotonic() and not is_over:
                self._try_disk()
            self._num_done += sum(job.num_bytes for job in jobs)
            if asked := [job.answered for job in jobs if job.answered is not None]:
                trio.from_thread.run_sync(_set_all, asked)
        self._database.close()

    def _take(self) -> list[_Job | None]:
        """What a window brings, None at its end when it is the last; nothing when a trial is due before."""
        wait_s = None if self._trial_at is None else max(0, self._trial_at - time.monotonic())
        try:
            taken = [self._queue.get(timeout=wait_s)]
        except Empty:
            return []
        self._somebody_waits.wait(self._commit_s)
        self._somebody_waits.clear()  # before the queue is emptied: who sets it has put a job there
        with suppress(Empty):
            while True:
                taken.append(self._queue.get_nowait())
        return taken

    def _do(self, jobs: list[_Job]) -> None:
        """All of them in one transaction or, when that fails, each in its own."""
        try:
            self._transact(jobs)
        except Exception:
            if len(jobs) > 1:
                for job in jobs:
                    self._do([job])
            else:
                self._fail(jobs[0])

    def _transact(self, jobs: list[_Job]) -> None:
        self._database.begin()
        try:
            for job in jobs:
                if job.lost_with not in self._lost:
                    self._act(job)
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise

    def _act(self, job: _Job) -> None:
        job.error = None  # of the first try
        try:
            job.value = job.act(self._database)
        except EngineError as error:
            job.error = error

    def _fail(self, job: _Job) -> None:
        self._doubt(job.num_bytes)
        if job.lost_with is None:
            log.exception("the %s failed", self.name)
            job.error = ServerError(f"The {self.name} failed.")
        else:
            log.exception("the %s lost %s", self.name, job.lost_with)
            self._lost.add(job.lost_with)

    def _doubt(self, num_bytes: int) -> None:
        """Have the disk tried with this much, now unless that goes on already."""
        self._trial_bytes = min(max(self._trial_bytes, num_bytes), _MAX_TRIAL_BYTES)
        if self._trial_at is None:
            self._trial_at = time.monotonic()

    def _try_disk(self) -> None:
        try:
            self._database.try_to_write(self._trial_bytes)
        except Exception as error:
            if self.failure is None:
                log.error("the %s cannot write: %s", self.name, error)
            self.failure, self._trial_at = str(error), time.monotonic() + self._retry_s
        else:
            if self.failure is not None:
                log.warning("the %s can write again", self.name)
            self.failure, self._trial_at, self._trial_bytes = None, None, _TRIAL_BYTES


def _nothing(database: object) -> None:
    """What waits for its turn alone does."""


def _set_all(events: list[trio.Event]) -> None:
    for event in events:
        event.set()
