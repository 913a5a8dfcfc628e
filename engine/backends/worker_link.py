"""The server's end of a worker: starts the process, carries frames, starts another when it dies.

    STARTING ──Ready──▶ UP ──death──▶ STARTING …          STARTING ──death──▶ DOWN, for a while ──▶ STARTING

What was said to a worker that died is forgotten; the owner says it again when `up` is called for the next one. The
first death after an UP is followed by a new start at once, a failed start by ever longer waits.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from subprocess import PIPE
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import trio

from engine.backends.frames import Failed, FrameReader, Loading, encode
from engine.errors import BackendError

log = logging.getLogger(__name__)

_MAX_WAIT_S = 30.0

_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Bytes. Larger blocks, such as KV, come from the system and go back to it; glibc would come to keep them all.
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    # Setting the one ends the other's growing by itself; at its first value, the heap is given back between two layers.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    # Kernels of half a MB for each shape of a product, in oneDNN's cache and in torch's. There are as many shapes as
    # there are lengths of a context, and to make a kernel again takes a millisecond.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "128",
}


ReadyT = TypeVar("ReadyT", bound=msgspec.Struct)
ReportT = TypeVar("ReportT")
ReadyT_contra = TypeVar("ReadyT_contra", contravariant=True)
ReportT_contra = TypeVar("ReportT_contra", contravariant=True)


class Owner(Protocol[ReadyT_contra, ReportT_contra]):
    """Who uses the link. Called from the link's task; must not wait."""

    def worker_up(self, ready: ReadyT_contra) -> None:
        """A worker is there and knows nothing."""

    def worker_down(self, reason: str, *, was_up: bool) -> None:
        """The worker died, and everything it had is lost; `was_up` false: it could not even start."""

    def worker_said(self, report: ReportT_contra) -> None:
        """A report about a job."""


class WorkerLink(Generic[ReadyT, ReportT]):
    """One worker process after another. `run` for the link's whole life, in one task."""

    def __init__(
        self,
        argv: Sequence[str],
        progress: Callable[[str, float], None],
        ready: type[ReadyT],
        new_reader: Callable[[], FrameReader[ReportT]],
    ) -> None:
        """argv: the command. progress: what is being done, and the fraction done, 0 to 1.

        ready: what the worker reports once, when it is up. new_reader: reads all that it may report.
        """
        self._argv = list(argv)
        self._progress = progress
        self._ready_kind = ready
        self._new_reader = new_reader
        self._outbox: trio.MemorySendChannel[bytes] | None = None
        self._process: trio.Process | None = None
        self._ready: ReadyT | None = None
        self._failure = ""
        self._changed = trio.Event()

    @property
    def is_up(self) -> bool:
        """Whether what is sent now reaches a loaded model."""
        return self._ready is not None

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return self._process.pid if self._process else None

    async def wait_up(self) -> ReadyT:
        """Wait for a loaded model. Raises BackendError with its reason when a start has failed."""
        while not self._ready:
            if self._failure:
                raise BackendError(f"The model could not be loaded: {self._failure}")
            await self._changed.wait()
        return self._ready

    def send(self, commands: Sequence[msgspec.Struct]) -> None:
        """Pass commands on, in order and in one piece. They are lost when no worker is up."""
        if self._outbox and commands:
            self._outbox.send_nowait(b"".join(map(encode, commands)))

    def kill(self) -> None:
        """End the worker at once, if there is one; another is started."""
        if self._process is not None:
            self._process.kill()

    async def run(self, owner: Owner[ReadyT, ReportT]) -> None:
        """Keep a worker alive until cancelled."""
        failed_starts = 0
        while True:
            was_up, reason = await self._live(owner)
            log.error("model worker ended: %s", reason)
            self._failure = "" if was_up else reason
            self._notify()
            owner.worker_down(reason, was_up=was_up)
            failed_starts = 0 if was_up else failed_starts + 1
            if failed_starts:
                await trio.sleep(min(2.0**failed_starts, _MAX_WAIT_S))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _live(self, owner: Owner[ReadyT, ReportT]) -> tuple[bool, str]:
        """One worker's life. Returns whether it was up, and why it ended."""
        sender, receiver = trio.open_memory_channel[bytes](math.inf)  # what a run may send is bounded by its context
        environment = {**os.environ, **_ENVIRONMENT}
        process = await trio.lowlevel.open_process(self._argv, stdin=PIPE, stdout=PIPE, env=environment)
        self._process, self._outbox = process, sender
        try:
            assert process.stdin and process.stdout
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write_all, receiver, process.stdin)
                failure = await self._read(process.stdout, owner)
                nursery.cancel_scope.cancel()
        finally:
            was_up = self.is_up
            self._process = self._outbox = self._ready = None
            sender.close()
            receiver.close()
            await _end(process)
        return was_up, failure or f"exit status {process.returncode}"

    async def _read(self, stream: trio.abc.ReceiveStream, owner: Owner[ReadyT, ReportT]) -> str:
        """Hand out reports until the worker closes its end; what it said of a failed start."""
        reader, failure = self._new_reader(), ""
        async for data in stream:
            for report in reader.feed(data):
                if isinstance(report, Loading):
                    self._progress(f"Loading the model: {report.stage}", report.done / report.total)
                elif isinstance(report, self._ready_kind):
                    self._ready = report
                    self._notify()
                    owner.worker_up(report)
                elif isinstance(report, Failed) and not report.job:
                    failure = report.message
                else:
                    owner.worker_said(report)
        return failure


async def _write_all(receiver: trio.MemoryReceiveChannel[bytes], stream: trio.abc.SendStream) -> None:
    try:
        async for first in receiver:
            # In one piece, so that the worker knows of a step before it starts on the prompt by itself.
            await stream.send_all(b"".join([first, *_waiting(receiver)]))
    except trio.BrokenResourceError:
        return  # it died; the reader sees that too


def _waiting(receiver: trio.MemoryReceiveChannel[bytes]) -> Iterator[bytes]:
    with suppress(trio.WouldBlock):
        while True:
            yield receiver.receive_nowait()


async def _end(process: trio.Process) -> None:
    """Make sure that the process is gone and reaped. It has nothing to lose, so it is not asked."""
    process.kill()
    with trio.CancelScope(shield=True):  # bounded: a killed process ends
        await process.wait()
        assert process.stdin and process.stdout
        await process.stdin.aclose()
        await process.stdout.aclose()
