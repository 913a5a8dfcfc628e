"""The runs that a connection holds: one per lane, each with a cursor that reads it.

The session decides what a frame means by the state of its lane; here is what belongs to it at run time. A lane holds
its last run after its end, too, because the next one may go on from it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.items import Item
from engine.left_out import Whole, with_left_out
from engine.live import Cursor, Live
from engine.opening import Before, previous_not_found
from engine.responses import Responses
from engine.session import Session


class Lanes:
    """Runs and cursors by lane; `wake` is called when a run that is read has events."""

    __slots__ = ("_cursors", "_lives", "_principal", "_responses", "_session", "_wake")  # one for every connection

    def __init__(self, session: Session, responses: Responses, principal: str, wake: Callable[[], None]) -> None:
        self._session = session
        self._responses = responses
        self._principal = principal
        self._wake = wake
        self._lives: dict[str | None, Live] = {}
        self._cursors: dict[str | None, Cursor] = {}

    def live(self, stream_id: str | None) -> Live:
        """The lane's open or last run."""
        return self._lives[stream_id]

    def cursor(self, stream_id: str | None) -> Cursor | None:
        """What reads the lane's run, if anything does."""
        return self._cursors.get(stream_id)

    def cursors(self) -> list[tuple[str | None, Cursor]]:
        """All that is read."""
        return list(self._cursors.items())

    def adopt(self, stream_id: str | None, live: Live, next_seq: int) -> None:
        """Make a run the lane's own and read it from `next_seq` on. Raises EventsExpired; nothing changed then."""
        cursor = live.attach(next_seq, self._wake)
        self.stop_reading(stream_id)
        live.hold()  # before the release: both may be of the same run, taken up again on its own lane
        if earlier := self._lives.get(stream_id):
            earlier.release()
        self._lives[stream_id], self._cursors[stream_id] = live, cursor
        lane = self._session.lanes[stream_id]
        lane.response, lane.reader = live.response, cursor
        self._wake()

    def stop_reading(self, stream_id: str | None) -> None:
        """Send no more of the lane's run."""
        if cursor := self._cursors.pop(stream_id, None):
            cursor.live.detach(cursor)

    def let_go(self) -> None:
        """The connection is over."""
        for stream_id, live in self._lives.items():
            self.stop_reading(stream_id)
            live.release()
        self._lives.clear()

    # --- chains ---

    async def before(self, stream_id: str | None, response_id: str | None) -> Before | None:
        """The run to go on from: of a lane, or else a stored one; on its own lane the new one takes its place.

        Raises RequestError when there is no such run, or nothing can go on from it.
        """
        if response_id is None:
            return None
        before = self._remembered(stream_id, response_id)
        if before is not None and not before.lacks_items:
            return before
        stored = await self._responses.records.before(response_id, self._principal)
        return replace(stored, live=before.live, is_own=before.is_own) if before else stored

    def _remembered(self, stream_id: str | None, response_id: str) -> Before | None:
        lanes = self._session.remembered(response_id)
        if not lanes:
            return None
        is_own = stream_id in lanes
        live = self._lives[stream_id if is_own else lanes[0]]
        if live.is_forgotten or not live.response.can_go_on:
            raise previous_not_found(response_id)
        return Before(live.response, live, is_own)

    def with_left_out(self, stream_id: str | None, items: list[Item]) -> Whole | None:
        """A whole history with the hosted calls of the lane's last run; None where it does not just lack those."""
        live = self._lives.get(stream_id)
        if live is None or live.is_forgotten or live.response.round is None:
            return None
        return with_left_out(items, live.response.round.items(), live.response.answers)

    def forget(self, stream_id: str | None, response_id: str) -> None:
        """A run that was to go on from this one has failed: nothing may go on from it on this connection any more.

        OpenAI's rule, which its clients count on: they then send everything again. A fork that fails harms nobody.
        """
        if stream_id in self._session.remembered(response_id) and not self._lives[stream_id].response.is_open:
            self._session.forget(stream_id)
            self.stop_reading(stream_id)
            self._lives.pop(stream_id).release()


def resume_accepted(live: Live, first: int) -> dict[str, Any]:
    """The answer to `response.resume`, when the run is read from event `first` on."""
    response = live.response
    accepted = {
        "type": "response.resume.accepted",
        "response_id": response.id,
        "starting_after": first - 1,
        "status": response.status.value,
        "last_sequence_number": response.log.next - 1,
    }
    if not live.revivals:
        return accepted
    return accepted | {"revival": live.revivals[-1].id, "still_pending": response.still_pending()}
