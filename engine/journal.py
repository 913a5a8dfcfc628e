"""A run in the store: one record of how it began, and one more whenever a step of it, or it itself, has ended.

A step's record holds what is new since the last one (items, events, tokens, answers), so its cost follows the step, not
the run. Whole in each are only the run's progress and its open calls, which are small. A final event repeats the run's
whole output; it is not written, but made again from the rest (revival.py).

JSON, because a request holds JSON of its client's that has to come back to the letter, and numbers of any size.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from engine.answers import OpenCall
from engine.events import ErrorDetails, Event, FinalEvent, IncompleteDetails, encode_event
from engine.folded import FoldedItem
from engine.items import Item, encode_item
from engine.made import HostedItem, Made
from engine.progress import Progress
from engine.response import Response
from engine.tokens import Span, TokenLog

FORMAT: Final = 1


class StartRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a run began.

    request: without its items. goes_on: its sequence was the earlier run's, or a copy of it; else num_cut says how many
    of the oldest units (see truncation.py) the new sequence was not given.
    """

    format: int
    response_id: str
    principal: str
    created_at: int
    request: msgspec.Raw
    items: list[msgspec.Raw]
    digests: dict[str, bytes] = {}
    goes_on: bool = False
    num_cut: int = 0


class Revival(msgspec.Struct, frozen=True):
    """That a run was taken up from the store, by a name of its own; its events from `first` on replace earlier ones."""

    id: str
    first: int


class Ending(msgspec.Struct, omit_defaults=True):
    """What a final event says that nothing else does. `completed_at` is 0 for a run that did not complete."""

    completed_at: int = 0
    error: ErrorDetails | None = None
    incomplete_details: IncompleteDetails | None = None


class StepRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is new since the record before.

    given: items that were taken for the step. made: finished items, folded if they streamed. log: events in order, a
    number standing for those of that item in `made`; without the final event. next_seq: of the log, without it, too.
    spans, num_tokens: what joined the context, and how long that is. along: digests of messages that came with answers.
    revival: the last one, in the first record since.
    """

    next_seq: int
    progress: Progress
    num_tokens: int
    given: list[msgspec.Raw] = []
    made: list[msgspec.Raw] = []
    log: list[msgspec.Raw] = []
    spans: list[Span] = []
    open: list[OpenCall] = []
    digests: dict[str, bytes] = {}
    along: list[bytes] = []
    ending: Ending | None = None
    revival: Revival | None = None


def encode_start(response: Response, principal: str, *, goes_on: bool = False, num_cut: int = 0) -> bytes:
    """The first record of a run that is about to start. See StartRecord."""
    if response.log.next:
        raise ValueError(f"response {response.id} has started, so its items are gone")
    digests, _ = response.answers.remembered_since((0, 0))
    return _encode(
        StartRecord(
            format=FORMAT,
            response_id=response.id,
            principal=principal,
            created_at=response.snapshot().created_at,
            request=msgspec.Raw(_encode(msgspec.structs.replace(response.request, items=[]))),
            items=_raw_items(response.request.items),
            digests=digests,
            goes_on=goes_on,
            num_cut=num_cut,
        )
    )


class Journal:
    """Writes the records of a run that has started, or that was revived from the first `number` of them."""

    def __init__(self, response: Response, num_tokens: int, number: int = 0, revival: Revival | None = None) -> None:
        """num_tokens: as much of the sequence's token log is recorded already, or is not this run's."""
        self._response = response
        self._num_tokens = num_tokens
        self._number = number
        self._revival = revival
        self._taken: list[Item] = []
        self._mark()

    def _mark(self) -> None:
        response = self._response
        self._next_seq = response.log.next
        self._num_made = len(response.made)
        self._num_remembered = response.answers.num_remembered

    def took(self, items: list[Item]) -> None:
        """These items were taken for the step that begins now."""
        self._taken = items

    def record(self, tokens: TokenLog, num_context_tokens: int, num_tokens: int | None = None) -> tuple[int, bytes]:
        """The next record, after its number. Due whenever a step or the run has ended, before anything follows.

        num_tokens: as much of the token log is to be recorded, if not all of it.
        """
        stop = tokens.total if num_tokens is None else num_tokens
        response = self._response
        made = response.made[self._num_made :]
        log = response.log.entries_since(self._next_seq)
        ending = _ending(log[-1]) if log else None
        digests, along = response.answers.remembered_since(self._num_remembered)
        record = StepRecord(
            next_seq=response.log.next - (ending is not None),
            progress=response.progress,
            num_tokens=num_context_tokens,
            given=_raw_items(self._taken),
            made=list(map(_raw_made, made)),
            log=_raw_log(log[:-1] if ending else log, made),
            spans=list(tokens.since(self._num_tokens, stop)),
            open=list(response.answers.open.values()),
            digests=digests,
            along=along,
            ending=ending,
            revival=self._revival,
        )
        self._revival = None
        number, self._number = self._number, self._number + 1
        self._taken, self._num_tokens = [], stop
        self._mark()
        return number, _encode(record)


_ENCODER: Final = msgspec.json.Encoder()


def _encode(value: msgspec.Struct) -> bytes:
    return _ENCODER.encode(value)


def _raw_items(items: Iterable[Item]) -> list[msgspec.Raw]:
    return [msgspec.Raw(encode_item(item)) for item in items]


def _raw_made(made: Made) -> msgspec.Raw:
    return msgspec.Raw(_encode(made) if isinstance(made, FoldedItem | HostedItem) else encode_item(made))


def _raw_log(entries: list[Event | FoldedItem], made: list[Made]) -> list[msgspec.Raw]:
    place = {id(one): number for number, one in enumerate(made)}
    return [
        msgspec.Raw(b"%d" % place[id(entry)] if isinstance(entry, FoldedItem) else encode_event(entry))
        for entry in entries
    ]


def _ending(event: Event | FoldedItem) -> Ending | None:
    if not isinstance(event, FinalEvent):
        return None
    response = event.response
    return Ending(response.completed_at or 0, response.error, response.incomplete_details)
