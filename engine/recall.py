"""A run by its id, in memory or stored; one that its server left behind is taken up and goes on."""

import trio

from engine.archive import Archive
from engine.hosted.toolbox import Toolbox
from engine.hosting import begin_hosting, reopen_hosting
from engine.live import Live
from engine.records import response_not_found
from engine.run_table import RunTable
from engine.safety.lookout import Lookout
from engine.till import Till
from engine.vetting import open_guard


class Recall:
    """Knows where runs may be. archive: without one they are in memory only."""

    def __init__(
        self, runs: RunTable, archive: Archive | None, till: Till, lookout: Lookout | None, toolbox: Toolbox | None
    ) -> None:
        self._runs = runs
        self._archive = archive
        self._till = till
        self._lookout = lookout
        self._toolbox = toolbox
        self._taking_up = trio.Lock()

    async def find(self, response_id: str, principal: str, *, takes_up: bool) -> Live:
        """The run. takes_up: one that was open goes on. Raises NotFound, and what keeps a run from going on."""
        if live := self._runs.find(response_id, principal):
            return live
        if self._archive is None:
            raise response_not_found(response_id)
        async with self._taking_up:  # or two who ask at once would each take it up
            if live := self._runs.find(response_id, principal):
                return live
            next_segment = await self._till.next_segment(response_id) if takes_up else 0
            found = await self._archive.rest(response_id, principal)
            if found is None:
                raise response_not_found(response_id)
            live, revived = found
            if not live.is_resting:
                return live
            if not takes_up:
                if self._runs.is_draining:
                    live.drain()
                return live
            self._runs.admit(principal)
            hosting = await reopen_hosting(self._toolbox, live.response)
            if not self._archive.take_up(live, revived):
                raise response_not_found(response_id)
            begin_hosting(self._toolbox, live, hosting)
            live.guard = open_guard(self._lookout, live.response)
            live.meter = self._till.meter_again(live.response, principal, live.sequence, next_segment)
            self._runs.carry_soon(live, None)
            return live
