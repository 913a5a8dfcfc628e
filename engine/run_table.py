"""The runs in memory: each has its task, is found by its id, and is kept for a while after its end if that is of use.

A run that may be resumed is kept for as long as that is promised. One that was made over HTTP and is stored is kept so
that the next request can go on from it as it is, without reading it back; of those only the newest.
"""

from weakref import WeakValueDictionary

import trio

from engine import loop
from engine.errors import RequestError, ServerError
from engine.live import Live
from engine.settings import Settings
from engine.usage import Timing


class RunTable:
    """All runs of a server that are not only stored. Their tasks live in `nursery`."""

    def __init__(self, settings: Settings, nursery: trio.Nursery) -> None:
        self.lives: dict[str, Live] = {}
        self.is_draining = False
        self._settings = settings
        self._nursery = nursery
        self._referenced: WeakValueDictionary[str, Live] = WeakValueDictionary()  # and those that only lanes know
        self._kept: dict[str, trio.CancelScope] = {}  # stored ones, oldest first
        self._ended = trio.Event()

    def find(self, response_id: str, principal: str) -> Live | None:
        """The run with this id; None also when it belongs to somebody else."""
        live = self.lives.get(response_id)
        return live if live is not None and live.principal == principal else None

    def admit(self, principal: str) -> None:
        """Raises ServerError when no runs are taken any more, RequestError when this principal has too many."""
        if self.is_draining:
            raise ServerError("The server is shutting down.", code="server_is_overloaded", status=503)
        num_open = sum(live.principal == principal and live.response.is_open for live in self.lives.values())
        if num_open >= self._settings.max_runs_per_principal:
            raise _too_many(f"More than {self._settings.max_runs_per_principal} open responses.")

    def admit_model(self, model: str, max_runs: int) -> None:
        """Raises RequestError when so many runs of this model are open."""
        runs = (live.response for live in self.lives.values())
        if sum(run.is_open and run.request.echo.model == model for run in runs) >= max_runs:
            raise _too_many(f"More than {max_runs} open responses of the model '{model}'.")

    # --- their lives ---

    def carry_soon(self, live: Live, prepared: Timing | None) -> None:
        """Let the run go on in a task of its own. prepared: see loop.run."""
        live.hold()  # released when its task ends, which is when nobody can find it any more
        self.lives[live.response.id] = self._referenced[live.response.id] = live
        self._nursery.start_soon(self._carry, live, prepared, name=live.response.id)

    async def _carry(self, live: Live, prepared: Timing | None) -> None:
        try:
            await loop.run(live, prepared, self._settings)
            self._ended.set()
            if not self.is_draining:
                await self._keep(live)
        finally:
            self.lives.pop(live.response.id, None)
            live.release()

    async def _keep(self, live: Live) -> None:
        response = live.response
        is_handy = response.is_stored and response.request.lifecycle == "stateless" and live.can_be_gone_on_from
        if live.is_forgotten or not (is_handy or response.request.echo.resumable):
            return
        with trio.move_on_after(self._settings.ended_ttl_s) as keeping:
            if is_handy:
                self._kept[response.id] = keeping
                if len(self._kept) > self._settings.max_kept_runs:
                    self.let_go(next(iter(self._kept)))
            await trio.sleep_forever()
        self._kept.pop(response.id, None)

    def let_go(self, response_id: str) -> None:
        """Keep this run no longer than was promised."""
        if keeping := self._kept.pop(response_id, None):
            keeping.cancel("nobody needs it here")

    def forget(self, response_id: str) -> None:
        """Its client wants this run gone: it ends, and nobody finds it, or goes on from what holds it, any more."""
        for live in list(self._referenced.values()):
            if live.lineage.has(response_id):
                live.is_forgotten = True
                self.let_go(live.response.id)
        if forgotten := self.lives.pop(response_id, None):
            forgotten.cancel("cancelled")

    # --- stopping ---

    async def drain(self) -> None:
        """Take no more runs; end paused ones at once, give the others `drain_s` to finish their step, then cut them."""
        self.is_draining = True
        for live in list(self.lives.values()):
            live.drain()
        with trio.move_on_after(self._settings.drain_s):
            while not all(live.is_over for live in self.lives.values()):
                self._ended = trio.Event()
                await self._ended.wait()
        for live in list(self.lives.values()):
            live.cancel("server_shutdown")

    @property
    def has_open(self) -> bool:
        """Whether any run can still go on."""
        return any(live.response.is_open for live in self.lives.values())


def _too_many(message: str) -> RequestError:
    return RequestError(message, code="rate_limit_exceeded", status=429)
