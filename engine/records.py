"""What runs were, in memory or in the store: for who reads them, and for who goes on from them."""

from engine.archive import Archive, Revived
from engine.errors import NotFound, RequestError
from engine.items import Item
from engine.live import Live
from engine.opening import Before, cannot_continue, given_items, previous_not_found
from engine.response import Response
from engine.run_table import RunTable
from engine.tokens import Span


class Records:
    """All runs of a server, as they can be looked at. Ids of another principal's are not found."""

    def __init__(self, runs: RunTable, archive: Archive | None) -> None:
        """archive: None for a server that stores nothing."""
        self._runs = runs
        self._archive = archive

    def find(self, response_id: str, principal: str) -> Live:
        """The run with this id, if it is in memory. Raises NotFound, also when it belongs to somebody else."""
        if live := self._runs.find(response_id, principal):
            return live
        raise response_not_found(response_id)

    async def read(self, response_id: str, principal: str) -> Response:
        """The run with this id as it is now, in memory or stored, to be looked at. Raises NotFound."""
        if live := self._runs.find(response_id, principal):
            return live.response
        response = await self._archive.read(response_id, principal) if self._archive else None
        if response is None:
            raise response_not_found(response_id)
        return response

    async def before(self, response_id: str, principal: str) -> Before:
        """A stored run that another one may go on from. Raises RequestError, `previous_response_not_found`."""
        live = self._runs.find(response_id, principal)
        if live is not None and live.response.round is not None:
            if live.is_forgotten or not (live.response.is_stored and live.response.can_go_on):
                raise previous_not_found(response_id)
            return Before(live.response, live, is_own=not live.is_shared)
        revived = await self._archive.revive(response_id, principal) if self._archive else None
        if revived is None or not revived.can_go_on:
            raise previous_not_found(response_id)
        past = revived.past if revived.has_rest else None
        return Before(revived.response, live, past=past, lineage=revived.lineage)

    async def to_continue(self, previous: Live) -> Before:
        """What a run goes on from that an append has come to too late. Raises RequestError."""
        if previous.can_continue:
            return Before(previous.response, previous, is_own=True)
        try:
            return await self.before(previous.response.id, previous.principal)
        except RequestError as error:
            raise cannot_continue(previous) from error

    async def given(self, response_id: str, principal: str) -> list[Item]:
        """What the run's context began with, and every item that it was given. Raises NotFound."""
        live = self._runs.find(response_id, principal)
        if live is not None and not live.response.is_stored:
            return given_items(live.response)
        return (await self._revive(response_id, principal)).given

    async def spans(self, response_id: str, principal: str) -> list[Span]:
        """The token log of everything that the run's context has held. Raises NotFound."""
        if live := self._runs.find(response_id, principal):
            return live.spans()
        return (await self._revive(response_id, principal)).past.spans

    async def delete(self, response_id: str, principal: str) -> None:
        """Forget a run, in memory and in the store; an open one ends. Raises NotFound."""
        was_stored = self._archive is not None and await self._archive.delete(response_id, principal)
        if not (was_stored or self._runs.find(response_id, principal)):
            raise response_not_found(response_id)
        self._runs.forget(response_id)

    async def _revive(self, response_id: str, principal: str) -> Revived:
        revived = await self._archive.revive(response_id, principal) if self._archive else None
        if revived is None:
            raise response_not_found(response_id)
        return revived


def response_not_found(response_id: str) -> NotFound:
    """The error of an id that names no run of this principal's."""
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
