"""Drives a client's run: holds connections, one after the other, and runs tools until the run ends.

On each connection a reader, a writer and a heartbeat; the first of them to stop ends it. What they say and what they
make of the server's words is decided by `client_state.RunState`.
"""

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import trio

from engine.client_state import DropCalls, Effect, EndTurn, Fail, Phase, Reconnect, Result, RunState, Show, StartCall
from engine.client_tools import ToolRunner
from engine.client_wire import Connection, ConnectionLost, Connector, Event, NoServer, RunFailed, beat, decode_event

log = logging.getLogger(__name__)

# Events that wait for the user of the run; beyond it the socket is not read, and the server feels it.
MAX_UNREAD_EVENTS: Final = 4096
# What a run that is left early may take to tell the server so, and a closing handshake.
LEAVE_TIMEOUT_S: Final = 2.0
MAX_BACKOFF_S: Final = 5.0
# A connection that held this long was a good one, even if a slow tool kept it silent.
STABLE_S: Final = 60.0

Entry = Event | Result


@dataclass(frozen=True)
class Retry:
    """A new connection is tried in `delay_s`; `attempt` counts the tries since the last good one."""

    attempt: int
    delay_s: float
    reason: ConnectionLost


@dataclass(frozen=True)
class Callbacks:
    """What the user wants to hear of; called in the driver's tasks."""

    on_event: Callable[[Event], None] | None = None
    on_retry: Callable[[Retry], None] | None = None


class Driver:
    """Drives one run. `next_entry` gives its events and the results of its turns; when it ends, `final` says how.

    `runner` must be set before `drive`.
    """

    runner: ToolRunner

    def __init__(self, state: RunState, connector: Connector, callbacks: Callbacks, max_retries: int) -> None:
        self.state = state
        self._entries_in, self._entries = trio.open_memory_channel[Entry](math.inf)
        self.final: Result | Exception | None = None
        self._connector = connector
        self._callbacks = callbacks
        self._max_retries = max_retries
        self._has_connected = False
        self._tools: trio.Nursery | None = None
        self._room = trio.Event()
        self._woken = trio.Event()
        self._ended = trio.Event()
        self._stopped = trio.Event()
        # Shielded, so that a cancelled user can still tell the server; `leave` ends it within LEAVE_TIMEOUT_S.
        self._scope = trio.CancelScope(shield=True)

    def wake(self) -> None:
        """There may be something to send."""
        self._woken.set()

    async def drive(self) -> None:
        """Hold connections and run tools until the run ends."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._tools = await nursery.start(self._host_tools)
                await self._hold_connections()
        self._stopped.set()

    async def next_entry(self) -> Entry | Exception:
        """The next event, or the result of the turn or of the run, or what broke it."""
        try:
            return await self._entries.receive()
        except trio.EndOfChannel:
            assert self.final is not None
            return self.final
        finally:
            self._room.set()

    async def leave(self) -> None:
        """Stop driving; a run that is not over is cancelled on the server, if it can be reached in time."""
        self._entries.close()
        self._room.set()
        self.state.cancel()
        self.wake()
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            await self._stopped.wait()
        self._scope.cancel()

    async def _host_tools(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Hold the nursery of the tools; those still running when the run ends are cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    # --- connections ---

    async def _hold_connections(self) -> None:
        attempt = 0
        while True:
            seen, started = self.state.last_seen, trio.current_time()
            try:
                await self._hold_connection()
                return
            except ConnectionLost as error:
                reason = error
            except RunFailed as error:
                self._end(error)
                return
            if self._ended.is_set():
                return
            is_progress = self.state.last_seen > seen or trio.current_time() - started > STABLE_S
            attempt = 1 if is_progress else attempt + 1
            is_nowhere = isinstance(reason, NoServer) and not self._has_connected
            if is_nowhere or attempt > self._max_retries or not self.state.can_reconnect:
                self._end(reason)
                return
            await self._back_off(Retry(attempt, _backoff_s(attempt), reason))

    async def _back_off(self, retry: Retry) -> None:
        log.info("%s; trying again in %.1f s", retry.reason.message, retry.delay_s)
        self._call_back(self._callbacks.on_retry, retry)
        with trio.move_on_after(retry.delay_s):
            await self._ended.wait()

    async def _hold_connection(self) -> None:
        """Connect and talk until the run ends. Raises ConnectionLost, or RunFailed when the server refuses for good."""
        try:
            async with self._connector.open() as connection:
                self._has_connected = True
                self.state.connected()
                await self._talk(connection)
        except (ConnectionLost, RunFailed):
            raise
        except Exception as error:
            # Whatever the WebSocket library or the network came up with: another connection may do better.
            log.exception("connection failed")
            raise ConnectionLost(f"connection failed: {error}") from error

    async def _talk(self, connection: Connection) -> None:
        """Read, write and beat; the first of them to stop ends the connection."""
        losses: list[ConnectionLost] = []

        async def do(work: Callable[[Connection], Any]) -> None:
            try:
                await work(connection)
            except ConnectionLost as error:
                losses.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for work in (self._read, self._write, beat, self._wait_ended):
                nursery.start_soon(do, work)
        if losses and not self._ended.is_set():
            raise losses[0]

    async def _read(self, connection: Connection) -> None:
        """Take in events. No checkpoint between receiving one and having acted on it, or a loss could swallow it."""
        while not self._ended.is_set():
            await self._wait_room()
            event = decode_event(await connection.receive())
            for effect in self.state.receive(event):
                self._act(effect)
            self.wake()

    async def _wait_room(self) -> None:
        """Let the server feel a user who does not read; one who has left reads nothing ever."""
        while (unread := self._entries_in.statistics()).current_buffer_used >= MAX_UNREAD_EVENTS:
            if not unread.open_receive_channels:
                return
            self._room = trio.Event()
            await self._room.wait()

    async def _write(self, connection: Connection) -> None:
        while True:
            self._woken = trio.Event()
            while (frame := self.state.next_frame()) is not None:
                await connection.send(frame)
            await self._woken.wait()

    async def _wait_ended(self, connection: Connection) -> None:
        """A tool's callback may end the run too."""
        await self._ended.wait()

    # --- effects ---

    def _act(self, effect: Effect) -> None:
        match effect:
            case Show(event):
                self._call_back(self._callbacks.on_event, event)
                self._give(event)
            case StartCall(item):
                assert self._tools is not None
                self._tools.start_soon(self._answer, item)
            case DropCalls(keys):
                self.runner.drop(keys)
            case EndTurn(result):
                if self.state.phase is Phase.ENDED:
                    self._end(result)
                else:
                    self._give(result)
            case Fail(error):
                self._end(error)
            case Reconnect(reason):
                raise reason
            case _:
                assert_never(effect)

    def _give(self, entry: Event | Result) -> None:
        try:
            self._entries_in.send_nowait(entry)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The block was left, or a callback failed: nobody reads on.
            return

    async def _answer(self, item: Event) -> None:
        try:
            await self.runner.answer(item)
        except Exception as error:
            self._end(error)

    def _call_back(self, callback: Callable[[Any], None] | None, value: Any) -> None:
        if callback is None:
            return
        try:
            callback(value)
        except Exception as error:
            self._end(error)

    def _end(self, outcome: Result | Exception) -> None:
        """Record how the run ended; the first word counts."""
        if self.final is not None:
            return
        self.final = outcome
        self.state.fail()
        self._entries_in.close()
        self._ended.set()


def _backoff_s(attempt: int) -> float:
    """0.2 s, doubling, up to MAX_BACKOFF_S, spread by a tenth so that many clients do not come back at once."""
    return min(0.2 * 2.0 ** (attempt - 1), MAX_BACKOFF_S) * random.uniform(0.9, 1.1)
