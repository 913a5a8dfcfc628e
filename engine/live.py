"""A Response with its wake-ups: who reads it, who waits for it, what cancels it.

The run owns its log and its task; connections hold cursors. A cursor's `wake` is called whenever the log grew, and the
loop waits when an attached reader is too far behind. When the last reader of its own leaves, a resumable run gets a
lease (a deadline on its scope) and one in the background goes on; any other is cancelled at once, because nobody could
ever answer it. A visitor only looks: it neither keeps a run nor ends it.

What ends a step is recorded before readers are told of it. Where the settings say so, its terminal event is withheld
until it is on disk; the state itself is never behind.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from engine.backends.base import Extension, Sequence
from engine.clock import wall_clock
from engine.errors import RequestError, ServerError
from engine.events import TERMINAL_TYPES, Event
from engine.history import Lineage
from engine.hosted.runner import Runner
from engine.journal import Revival
from engine.meter import Meter
from engine.recorder import Recorder
from engine.response import Response
from engine.safety.guard import Guard
from engine.safety.verdict import Finding
from engine.settings import Settings
from engine.status import Reason, Status
from engine.tokens import Span


class SlowReader(trio.TooSlowError):
    """The reader kept its run waiting for too long and reads it no more; others may."""


class Cursor:
    """A reader's position in a run's log. Several may read one run."""

    __slots__ = ("_may_see_unsolicited", "is_dropped", "is_visitor", "live", "next", "wake")

    def __init__(
        self, live: "Live", next_seq: int, wake: Callable[[], None], *, reads_to_end: bool, is_visitor: bool
    ) -> None:
        self.live = live
        self.next = next_seq
        self.wake = wake
        self.is_visitor = is_visitor
        self.is_dropped = False
        # Who comes after the end asked for the end; who waited at the pause did not.
        self._may_see_unsolicited = reads_to_end or not live.response.is_open

    def read_nowait(self, limit: int) -> list[Event]:
        """Up to `limit` further events, empty when there are none now. Raises EventsExpired; SlowReader if dropped."""
        if self.is_dropped:
            raise SlowReader
        log, stop = self.live.response.log, self._stop()
        events = [log.read(seq) for seq in range(self.next, min(stop, self.next + limit))]
        self.next += len(events)
        self.live.reader_advanced()
        return events

    def skip(self) -> None:
        """Pass over what is there: this reader waits for something else."""
        self.next = max(self.next, self._stop())
        self.live.reader_advanced()

    @property
    def has_more(self) -> bool:
        """Whether `read_nowait` would return something."""
        return self.next < self._stop()

    @property
    def has_unsent(self) -> bool:
        """Whether there is something that `read_nowait` has not returned, be it withheld for now."""
        return self.next < self._end()

    def _stop(self) -> int:
        withheld_from = self.live.withheld_from
        return self._end() if withheld_from is None else min(self._end(), withheld_from)

    def _end(self) -> int:
        response = self.live.response
        unsolicited_from = response.progress.unsolicited_from
        if unsolicited_from is not None and not self._may_see_unsolicited:
            return unsolicited_from
        return response.log.next


class Live:
    """One run as the server holds it."""

    # Named, since a dictionary of more than 30 attributes is one of its own for every run, of 1.5 kB.
    __slots__ = (
        "__weakref__",
        "_cursors", "_drained", "_end_reason", "_is_closed", "_is_taken_up", "_num_holders", "_num_tokens", "_pause",
        "_resumed", "_sequence", "_settings", "at_end", "extension", "guard", "hosted", "is_draining", "is_forgotten",
        "lineage", "meter", "principal", "queue_ms", "recorder", "response", "revivals", "route_ms", "scope",
        "tokens_seen", "validate_ms", "waiting", "wants_interrupt", "withheld_from",
    )  # fmt: skip

    def __init__(self, response: Response, sequence: Sequence | None, settings: Settings, principal: str) -> None:
        """sequence: None for a run that was read from the store, and has ended or has yet to be taken up."""
        self.response = response
        self.principal = principal
        self.lineage = Lineage(response.id)
        self.recorder: Recorder | None = None
        self.guard: Guard | None = None
        self.hosted: Runner | None = None
        self.meter: Meter | None = None
        self.revivals: list[Revival] = []
        self.withheld_from: int | None = None
        self.scope = trio.CancelScope()
        self.extension: Extension | None = None
        self.tokens_seen = 0
        self._num_tokens: int | None = None  # of its sequence's log, once another run goes on with that
        self.is_draining = False
        self.wants_interrupt = False
        self.is_forgotten = False  # it, or one it goes on from, was deleted: nothing may go on from it
        self.waiting: trio.CancelScope | None = None  # around the loop's wait for the model
        self.at_end: Callable[[], None] | None = None  # called once when it is over, before any reader knows
        self.queue_ms = 0.0
        self.route_ms = 0.0
        self.validate_ms = 0.0
        self._settings = settings
        self._sequence = sequence
        self._is_taken_up = False
        self._cursors: list[Cursor] = []
        self._end_reason: Reason = "connection_lost"
        self._resumed = trio.Event()
        self._drained: trio.Event | None = None
        self._num_holders = 0
        self._is_closed = sequence is None
        self._pause: trio.CancelScope | None = None

    @property
    def sequence(self) -> Sequence:
        """What it samples from. Raises ValueError for a run that was read from the store, unless it was taken up."""
        if self._sequence is None:
            raise ValueError(f"response {self.response.id} has no sequence")
        return self._sequence

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and readers may know."""
        return not self.response.is_open and self.withheld_from is None

    # --- from the store ---

    @property
    def is_resting(self) -> bool:
        """Whether it can only be read, because nobody has taken it up."""
        return self._sequence is None and self.response.is_open

    def take_up(self, sequence: Sequence) -> None:
        """Go on with this sequence; from now on somebody has to read the run."""
        self._sequence = sequence
        self._is_closed = False
        self._is_taken_up = True
        self.tokens_seen = sequence.tokens.total
        self.expect_reader()

    def first_missed(self, starting_after: int, revival_id: str | None) -> int:
        """The first event to send a client that has had those up to `starting_after` and has heard of this revival.

        What a client has had of a run's former life, and that life took with it, is replaced.
        """
        known = next((n for n, one in enumerate(self.revivals, 1) if one.id == revival_id), 0)
        return min([starting_after + 1, *(one.first for one in self.revivals[known:])])

    # --- what is kept of it ---

    def record(self) -> None:
        """A step or the run has ended: write that down, if this run is, before `notify`."""
        if self.recorder is None or not self.recorder.record(self.num_tokens_shown):
            return
        last = self.response.log.next - 1
        if self._settings.store_wait and self.withheld_from is None and is_terminal(self.response.log.read(last)):
            self.withheld_from = last

    async def wait_durable(self) -> None:
        """Let readers have what is withheld once it is on disk; also when it cannot be, which the store has logged."""
        if self.withheld_from is None or self.recorder is None:
            return
        with suppress(ServerError):
            await self.recorder.wait_durable()
        self.withheld_from = None
        self.notify()

    # --- readers ---

    def attach(
        self, next_seq: int, wake: Callable[[], None], *, reads_to_end: bool = False, is_visitor: bool = False
    ) -> Cursor:
        """A new reader from `next_seq` on.

        reads_to_end: it wants to know how the run ends, solicited or not. is_visitor: the run is not its own.
        Raises EventsExpired when the log no longer reaches back that far, RequestError when it has not come that far.
        """
        log = self.response.log
        if next_seq > log.next:
            message = f"The last event of this response so far has number {log.next - 1}."
            raise RequestError(message, param="starting_after")
        if next_seq < log.next:
            log.read(next_seq)
        cursor = Cursor(self, next_seq, wake, reads_to_end=reads_to_end, is_visitor=is_visitor)
        self._cursors.append(cursor)
        if not is_visitor:
            self.scope.deadline = math.inf
        return cursor

    def detach(self, cursor: Cursor) -> None:
        """The reader is gone. The last own one's leaving starts the lease, or ends the run, or means nothing to it."""
        if cursor not in self._cursors:
            return
        self._cursors.remove(cursor)
        self.reader_advanced()
        is_kept = cursor.is_visitor or not all(other.is_visitor for other in self._cursors)
        if is_kept or not self.response.is_open:
            return
        echo = self.response.request.echo
        if echo.background or echo.resumable or self._is_taken_up:
            self.expect_reader()
        else:
            self.cancel("connection_lost")

    def expect_reader(self) -> None:
        """Nobody reads the run now; somebody has to, within the lease, or it is cancelled. Unless in the background."""
        if not self.response.request.echo.background:
            self.scope.deadline = trio.current_time() + self._settings.lease_s

    def notify(self) -> None:
        """The log grew: wake every reader."""
        if self.at_end is not None and not self.response.is_open:
            at_end, self.at_end = self.at_end, None
            at_end()
        for cursor in self._cursors:
            cursor.wake()

    def reader_advanced(self) -> None:
        """A reader took events or left: the loop may go on if it waits for that."""
        if self._drained is not None and not self._is_behind():
            self._drained.set()
            self._drained = None

    async def wait_drained(self) -> None:
        """Wait until no attached reader is too far behind. Who stays so for the stall limit is dropped."""
        if not self._is_behind():
            return
        with trio.move_on_after(self._settings.stall_s) as patience:
            while self._is_behind():
                self._drained = trio.Event()
                await self._drained.wait()
        if patience.cancelled_caught:
            for cursor in self._behind():
                cursor.is_dropped = True
                self.detach(cursor)
                cursor.wake()

    def _is_behind(self) -> bool:
        return bool(self._behind())

    def _behind(self) -> list[Cursor]:
        limit = self.response.log.next - self._settings.high_water_events
        return [cursor for cursor in self._cursors if cursor.next < limit]

    # --- the client's answers ---

    def resume(self) -> None:
        """The last pending output arrived: wake the loop."""
        self._resumed.set()

    def stir(self) -> None:
        """Something was given, though not all that is waited for."""
        self._resumed.set()

    async def wait_resumed(self, timeout_s: float, at_news: Callable[[], Awaitable[None]]) -> None:
        """Wait at a pause until the run is in progress again, or nothing came for `timeout_s`.

        at_news: done whenever something was given meanwhile.
        """
        with trio.move_on_after(timeout_s) as self._pause:
            while self.response.status is Status.PAUSED:
                self._resumed = trio.Event()
                await at_news()
                await self._resumed.wait()

    def postpone(self, timeout_s: float) -> None:
        """A part of an output came: the client is alive, so its time starts anew."""
        if self._pause is not None:
            self._pause.deadline = trio.current_time() + timeout_s

    # --- the end ---

    @property
    def end_reason(self) -> Reason:
        """Why the loop was cancelled."""
        return self._end_reason if self.scope.cancel_called else "server_shutdown"

    def cancel(self, reason: Reason) -> None:
        """End the run: at once when it is paused, at the loop's next checkpoint when it samples."""
        self._end_reason = reason
        if self.response.status is Status.PAUSED:
            self.end(reason)
            self.notify()
        self.scope.cancel(reason)

    def end(self, reason: Reason, blocked_by: Finding | None = None) -> None:
        """The run, if it has not ended by itself, is over now. blocked_by: what is behind a `content_filter`.

        When the server stops at a pause, or without waiting for anything, that is not recorded: the run can be taken
        up again as of its last step.
        """
        is_left = self.response.status is Status.PAUSED or not self.scope.cancel_called
        if reason == "server_shutdown" and is_left and self.response.is_open and self.recorder is not None:
            self.recorder.stop()
        self.response.end(reason, wall_clock(), blocked_by)
        self.record()

    @property
    def can_be_interrupted(self) -> bool:
        """Whether the step may stop here: a call, once begun, is carried to its end."""
        return self.response.can_be_interrupted and (self.guard is None or self.guard.can_interrupt)

    def interrupt(self) -> None:
        """Somebody steers: the step may stop early, at the loop's next safe point, during prefill too."""
        self.wants_interrupt = True
        if self.waiting is not None and self.can_be_interrupted:
            self.waiting.cancel("steered")

    def drain(self) -> None:
        """The server stops: a paused run ends now, a sampling one when its step is over."""
        self.is_draining = True
        if self.is_resting:
            self.end("server_shutdown")  # for those who read it here; the store knows nothing of it
            self.notify()
        elif self.response.status is Status.PAUSED:
            self.cancel("server_shutdown")

    def hold(self) -> None:
        """Somebody may go on from this run: its sequence stays open until as many have released it."""
        self._num_holders += 1

    def release(self) -> None:
        """One holder less. The sequence closes when there is none and the run has ended."""
        self._num_holders -= 1
        self.close_if_over()

    @property
    def is_shared(self) -> bool:
        """Whether others than its own task hold it."""
        return self._num_holders > 1

    def close_if_over(self) -> None:
        """Close the sequence once nobody samples from it or may still continue it."""
        if self._is_closed or self._num_holders > 0 or self.response.is_open:
            return
        self._is_closed = True
        self.sequence.close()

    @property
    def can_continue(self) -> bool:
        """Whether another run may go on from this one's sequence: it came to its end undisturbed, and still has it."""
        return self.response.ended_by_itself and not self._is_closed

    @property
    def can_be_gone_on_from(self) -> bool:
        """Whether a run may follow this one, and could do so from its sequence."""
        return self.can_continue and self.response.can_go_on and not self.is_forgotten

    def hand_over(self) -> Sequence:
        """The sequence, for the one run that goes on from this one."""
        self._is_closed = True
        self._num_tokens = self.sequence.tokens.total
        return self.sequence

    @property
    def num_tokens_shown(self) -> int | None:
        """How much of the sequence's token log is for others to see: what is held back as text is not. None for all."""
        return None if self.guard is None else self.guard.num_tokens_shown

    def spans(self) -> list[Span]:
        """The token log of everything that the run's context has held. Empty on backends that see no tokens."""
        stop = self.num_tokens_shown if self._num_tokens is None else self._num_tokens
        return list(self.sequence.tokens.since(0, stop))


def is_terminal(event: Event) -> bool:
    """Whether the event ends a step: nothing follows it until the client speaks."""
    return isinstance(event, TERMINAL_TYPES)
