"""The stored runs: begun, and read back to be shown, to be gone on from, or to be taken up again."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.base import Past
from engine.clock import wall_clock
from engine.errors import RequestError, ServerError
from engine.items import Item
from engine.journal import encode_start
from engine.response import Response
from engine.revival import Recorded, past_of, read
from engine.sealing import Sealer
from engine.settings import Settings
from engine.store import Store, Stored
from engine.writer import MintId


@dataclass(frozen=True)
class Revived:
    """A stored run as of its last record, with all that it goes on from.

    given: the context that it began with, and every item that was given to it. past: what its sequence has been
    through. num_records: how many there are of it. next_seq: the next number in its log as it was recorded. is_whole:
    no run before it has been deleted.
    """

    response: Response
    given: list[Item]
    past: Past
    num_records: int
    next_seq: int
    is_whole: bool

    @property
    def has_rest(self) -> bool:
        """Whether its sequence rested after a step when it ended, so that another one can be brought there."""
        return self.response.ended_by_itself and self.response.progress.num_steps > 0


class Archive:
    """What a store has of runs. Reading raises ServerError when the store fails, or has what cannot be read."""

    def __init__(self, store: Store, settings: Settings, sealer: Sealer, mint_id: MintId) -> None:
        self.store = store
        self._settings = settings
        self._sealer = sealer
        self._mint_id = mint_id

    def begin(self, response: Response, principal: str, *, goes_on: bool, num_cut: int) -> None:
        """Keep a run that is about to start; see StartRecord."""
        start = encode_start(response, principal, goes_on=goes_on, num_cut=num_cut)
        parent, created_at = response.request.previous_response_id, response.snapshot().created_at
        self.store.put_start(response.id, principal, parent, created_at, start)

    async def read(self, response_id: str, principal: str) -> Response | None:
        """A run by itself, to be shown; None when there is none."""
        stored = await self.store.load(response_id, principal)
        return None if stored is None else self._revive(_read(stored), None)

    async def revive(self, response_id: str, principal: str) -> Revived | None:
        """A run with all that it goes on from; None when there is none. Cost follows the history."""
        chain = await self.store.load_chain(response_id, principal)
        if not chain:
            return None
        try:
            return self._revive_chain(list(map(_read, chain)), is_whole=chain[0].parent is None)
        except RequestError as error:  # a compaction was sealed with another key
            raise ServerError("The response was stored by a server with another key.") from error

    def _revive_chain(self, chain: Sequence[Recorded], *, is_whole: bool) -> Revived:
        earlier: list[Item] = []
        response: Response | None = None
        for recorded in chain[:-1]:
            response = self._revive(recorded, response)
            earlier = recorded.context(earlier, self._sealer)
        last = chain[-1]
        return Revived(
            response=self._revive(last, response),
            given=[*earlier, *last.request.items, *(item for step in last.steps for item in step.given)],
            past=past_of(chain, self._sealer),
            num_records=len(last.steps),
            next_seq=last.next_seq,
            is_whole=is_whole,
        )

    def _revive(self, recorded: Recorded, before: Response | None) -> Response:
        return recorded.revive(self._settings, self._mint_id, wall_clock(), before, self._sealer, keeps_items=True)


def _read(stored: Stored) -> Recorded:
    return read(stored.start, stored.steps)
