"""The event log of a run: append-only, read by sequence number.

Readers are cursors, so resume, replay, slow readers and several readers are one mechanism. A finished item is folded
into its text and the end of a step packed (folded.py), which keeps a paused run small; reading builds the events again.
"""

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate

from engine.errors import RequestError
from engine.events import Event
from engine.folded import FoldedItem, PackableEvent, pack_event, unpack_event


class EventsExpired(RequestError):
    """The log no longer reaches back to where the reader wants to start."""

    code = "events_expired"


class EventLog:
    """Events 0 … next-1, of which those before `oldest` may have been let go."""

    def __init__(self, max_events: int) -> None:
        self._entries: list[Event | FoldedItem | bytes] = []
        self._firsts = array("L")
        self._max_events = max_events
        self.next = 0

    @property
    def oldest(self) -> int:
        """The smallest sequence number that can still be read."""
        return self._firsts[0] if self._firsts else self.next

    def append(self, event: Event) -> None:
        """Add the next event; its sequence number must be `next`."""
        if event.sequence_number != self.next:
            raise ValueError(f"event {event.sequence_number} where {self.next} is due")
        self._entries.append(event)
        self._firsts.append(self.next)
        self.next += 1
        if self.next - self._firsts[0] > self._max_events:
            del self._entries[0], self._firsts[0]

    def fold(self, item: FoldedItem, first: int) -> None:
        """Replace an item's events, from number `first` on the newest in the log, by their folded form.

        Does nothing when other events came in between or the item's beginning is gone.
        """
        if first + len(item) != self.next:
            return
        index = bisect_right(self._firsts, first) - 1
        if index < 0 or self._firsts[index] != first:
            return
        self._entries[index:] = [item]
        self._firsts[index:] = array("L", [first])

    def pack(self) -> None:
        """Pack the events that ended the newest step. Takes 25 µs, so let readers have them first."""
        for index in reversed(range(len(self._entries))):
            entry = self._entries[index]
            if not isinstance(entry, PackableEvent):
                return
            self._entries[index] = pack_event(entry)

    def read(self, seq: int) -> Event:
        """The event with this sequence number. Raises EventsExpired when it was let go, IndexError when it is to come.

        Cost: logarithmic in the number of entries.
        """
        if seq >= self.next:
            raise IndexError(seq)
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            raise EventsExpired(
                f"Events up to {self.oldest - 1} of this response are no longer kept.", param="starting_after"
            )
        entry = self._entries[index]
        if isinstance(entry, FoldedItem):
            return entry.event(seq, self._firsts[index])
        return unpack_event(entry) if isinstance(entry, bytes) else entry

    # --- the journal's side ---

    def entries_since(self, seq: int) -> list[Event | FoldedItem]:
        """What begins at number `seq` or later, as far as it is kept."""
        entries = self._entries[bisect_left(self._firsts, seq) :]
        return [unpack_event(entry) if isinstance(entry, bytes) else entry for entry in entries]

    def restore(self, entries: list[Event | FoldedItem], next_seq: int) -> None:
        """Go on as the log did that had these entries last, and `next_seq` as its next number."""
        sizes = [len(entry) if isinstance(entry, FoldedItem) else 1 for entry in entries]
        first = next_seq - sum(sizes)
        if first != self.next:  # what is missing in between was let go, and so was all before it
            del self._entries[:], self._firsts[:]
        self._entries += entries
        self._firsts.extend(accumulate(sizes[:-1], initial=first) if sizes else ())
        self.next = next_seq
        while self._firsts and self.next - self._firsts[0] > self._max_events:
            del self._entries[0], self._firsts[0]
