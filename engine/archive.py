"""The stored runs: begun, and read back to be shown, to be gone on from, or to be taken up again.

A run that is only read rests. Who resumes it takes it up as of its last record: a sequence is brought to where the
run's was, token for token, and the machine made of the records waits at the pause where the other one did. What came
later is gone with its server.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from engine.backends.base import Backend, Past
from engine.clock import wall_clock
from engine.errors import RequestError, ServerError
from engine.history import Lineage
from engine.ids import mint_id, mint_within
from engine.items import Item
from engine.journal import Revival, encode_start
from engine.live import Live
from engine.made import is_internal
from engine.opening import Opened, restore_sequence
from engine.recorder import Recorder
from engine.response import Response
from engine.revival import Recorded, past_of, read
from engine.sealing import Sealer
from engine.settings import Settings
from engine.store import Store, Stored

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Revived:
    """A stored run as of its last record, with all that it goes on from.

    given: the context that it began with, and every item that its client gave it. past: what its sequence has been
    through. num_records: how many there are of it. revivals: when it was taken up, and last where that would be now
    unless its end is recorded. is_whole: no run before it has been deleted.
    """

    response: Response
    given: list[Item]
    past: Past
    num_records: int
    revivals: list[Revival]
    is_whole: bool
    lineage: Lineage

    @property
    def can_go_on(self) -> bool:
        """Whether another run may go on from it."""
        return self.is_whole and self.response.can_go_on

    @property
    def has_rest(self) -> bool:
        """Whether its sequence rested after a step when it ended, so that another one can be brought there."""
        return self.response.ended_by_itself and self.response.progress.num_steps > 0


class Archive:
    """What a store has of runs. Reading raises ServerError when the store fails, or has what cannot be read."""

    def __init__(self, store: Store, backend: Backend, settings: Settings, sealer: Sealer) -> None:
        self._store = store
        self._backend = backend
        self._settings = settings
        self._sealer = sealer
        self._resting: WeakValueDictionary[str, Live] = WeakValueDictionary()  # for as long as anybody reads them

    # --- written ---

    def begin(self, response: Response, principal: str, opened: Opened) -> None:
        """Keep a run that is about to start."""
        start = encode_start(response, principal, goes_on=opened.goes_on, num_cut=opened.num_cut)
        parent, created_at = response.request.previous_response_id, response.snapshot().created_at
        self._store.put_start(response.id, principal, parent, created_at, start)

    def record(self, live: Live, num_records: int = 0) -> None:
        """Keep what becomes of a run from here on. num_records: how many there are of it."""
        revival = live.revivals[-1] if live.revivals else None
        live.recorder = Recorder(self._store, live.response, live.sequence, live.tokens_seen, num_records, revival)

    async def delete(self, response_id: str, principal: str) -> bool:
        """Forget a run. False when there is none."""
        return await self._store.delete(response_id, principal)

    # --- read ---

    async def read(self, response_id: str, principal: str) -> Response | None:
        """A run by itself, to be shown; None when there is none."""
        stored = await self._store.load(response_id, principal)
        if stored is None:
            return None
        with _unsealing():
            return self._machine(_read(stored), None)

    async def revive(self, response_id: str, principal: str) -> Revived | None:
        """A run with all that it goes on from; None when there is none. Cost follows the history."""
        chain = await self._store.load_chain(response_id, principal)
        if not chain:
            return None
        with _unsealing():
            return self._revive(list(map(_read, chain)), is_whole=chain[0].parent is None)

    def _revive(self, chain: list[Recorded], *, is_whole: bool) -> Revived:
        earlier: list[Item] = []
        response: Response | None = None
        lineage: Lineage | None = None
        for recorded in chain[:-1]:
            response = self._machine(recorded, response)
            earlier = recorded.context(earlier, self._sealer, as_shown=True)
            lineage = Lineage(response.id, lineage)
        last = chain[-1]
        return Revived(
            response=self._machine(last, response),
            given=[*earlier, *(item for item in _given(last) if not is_internal(item))],
            past=past_of(chain, self._sealer),
            num_records=len(last.steps),
            revivals=last.revivals if last.has_ended else [*last.revivals, Revival(mint_id("rev"), last.next_seq)],
            is_whole=is_whole,
            lineage=Lineage(last.start.response_id, lineage),
        )

    def _machine(self, recorded: Recorded, before: Response | None) -> Response:
        mint = mint_within(recorded.start.response_id)
        return recorded.revive(self._settings, mint, wall_clock(), before, self._sealer, keeps_items=True)

    # --- taken up ---

    async def rest(self, response_id: str, principal: str) -> tuple[Live, Revived] | None:
        """A run to be read, and what it takes to take it up; None when there is none.

        An open one is the same for all who read it at a time, so they see it go on once it is taken up.
        """
        revived = await self.revive(response_id, principal)
        if revived is None:
            return None
        live = self._resting.get(response_id)
        if live is None:
            live = Live(revived.response, None, self._settings, principal)
            live.lineage = revived.lineage
            live.revivals = revived.revivals
            if live.is_resting:
                self._resting[response_id] = live
        return live, revived

    def resting(self) -> list[Live]:
        """The open runs that are only read."""
        return list(self._resting.values())

    def take_up(self, live: Live, revived: Revived) -> bool:
        """Let a resting run go on. False when that cannot be; it rests on then. Raises RequestError."""
        response = live.response
        spec = response.request.spec(response.id)
        sequence = restore_sequence(self._backend, spec, revived.past) if revived.is_whole else None
        if sequence is None:
            log.warning("response %s cannot be taken up: what was before it, or its backend, is gone", response.id)
            return False
        self._resting.pop(response.id, None)
        live.take_up(sequence)
        self.record(live, revived.num_records)
        return True


@contextmanager
def _unsealing() -> Iterator[None]:
    try:
        yield
    except RequestError as error:  # a compaction was sealed with another key
        raise ServerError("The response was stored by a server with another key.") from error


def _read(stored: Stored) -> Recorded:
    return read(stored.start, stored.steps)


def _given(recorded: Recorded) -> list[Item]:
    return [*recorded.request.items, *(item for step in recorded.steps for item in step.given)]
