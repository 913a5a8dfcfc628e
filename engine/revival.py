"""A run read back from its records: a machine that cannot be told from the one that wrote them, as of the last one.

What came later is gone: the events of a half-sampled step, and answers that were waiting for others, which are due
again. A run that never ended a step has nothing to go on from; it comes back as failed, and its client may ask again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engine.backends.base import Past
from engine.errors import RequestError, ServerError
from engine.events import Event, decode_event
from engine.folded import FoldedItem
from engine.items import Call, Compaction, Item, decode_item, type_of
from engine.journal import FORMAT, Revival, StartRecord, StepRecord
from engine.made import HostedItem, Made, in_context, is_internal, shown
from engine.request import RunRequest
from engine.resolving import open_window
from engine.response import NUM_OPENING, Response
from engine.sealing import Sealer
from engine.settings import Settings
from engine.tokens import Span
from engine.truncation import droppable_units, without_oldest
from engine.writer import MintId


@dataclass(frozen=True)
class _Step:
    record: StepRecord
    given: list[Item]
    made: list[Made]
    log: list[Event | FoldedItem]


@dataclass(frozen=True)
class Recorded:
    """A run's records, decoded. `request` has the items that the run began with."""

    start: StartRecord
    request: RunRequest
    steps: list[_Step]

    @property
    def next_seq(self) -> int:
        """The next number in its log after its last record."""
        if not self.steps:
            return NUM_OPENING
        last = self.steps[-1].record
        return last.next_seq + (last.ending is not None)

    @property
    def has_ended(self) -> bool:
        """Whether its end is recorded, and nothing of it can have come later."""
        return bool(self.steps) and self.steps[-1].record.ending is not None

    @property
    def revivals(self) -> list[Revival]:
        """When it was taken up before, as far as something was recorded since."""
        return [step.record.revival for step in self.steps if step.record.revival is not None]

    def revive(
        self,
        settings: Settings,
        mint_id: MintId,
        now: float,
        before: Response | None = None,
        sealer: Sealer | None = None,
        *,
        keeps_items: bool = False,
    ) -> Response:
        """The run as of its last record. before: the run that it goes on from, where that is still known.

        keeps_items: also if such a run has no need of them. Raises RequestError for a compaction that cannot be opened.
        """
        start = self.start
        response = Response(
            start.response_id,
            self.request,
            settings,
            mint_id,
            start.created_at,
            before,
            sealer,
            keeps_items=keeps_items,
        )
        response.answers.restore([], start.digests, [])
        response.start()
        for step in self.steps:
            _restore(response, step)
        if not self.steps:
            response.fail(ServerError("The server stopped before the response's first step had ended."), now)
        return response

    def context(self, earlier: Sequence[Item], sealer: Sealer, *, as_shown: bool = False) -> list[Item]:
        """All that a model has to be given to go on from here. earlier: the same of the run that this one goes on from.

        as_shown: as a client knows it instead. Raises RequestError for a compaction that cannot be opened.
        """
        items = self.grown([*earlier, *self.request.items], sealer, as_shown=as_shown)
        return [item for item in items if not is_internal(item)] if as_shown else items

    def grown(self, items: list[Item], sealer: Sealer, *, as_shown: bool = False) -> list[Item]:
        """The same for a run that began with just these items."""
        for step in self.steps:
            items = [*items, *step.given]
            for one in step.made:
                for item in [shown(one)] if as_shown else in_context(one):
                    items = open_window(item, sealer) if isinstance(item, Compaction) else [*items, item]
        return items


def _restore(response: Response, step: _Step) -> None:
    record = step.record
    response.restore_round(step.given, step.made)
    # Copies of what can change, because records may be read twice.
    response.answers.restore(map(msgspec.structs.replace, record.open), record.digests, record.along)
    response.progress = msgspec.structs.replace(record.progress, messages=[*record.progress.messages])
    response.log.restore(step.log, record.next_seq)
    response.log.pack()
    if record.ending is not None:
        response.restore_end(record.ending.completed_at, record.ending.error, record.ending.incomplete_details)


def past_of(chain: Sequence[Recorded], sealer: Sealer) -> Past:
    """What the sequence of the last of these runs has been through; each of them goes on from the one before.

    Raises RequestError for a compaction that cannot be opened.
    """
    spans: list[Span] = []
    rounds: list[list[Item]] = []
    unread: list[Item] = []  # given, and no step has begun with it
    earlier: list[Item] = []
    held: list[Item] = []  # earlier, but for what was left out
    num_tokens = 0
    for recorded in chain:
        if recorded.start.goes_on:
            unread += recorded.request.items
            held = recorded.grown([*held, *recorded.request.items], sealer)
        else:  # everything before was given to a new sequence, together with what is new
            everything = [*earlier, *recorded.request.items]
            unread = without_oldest(everything, droppable_units(everything), recorded.start.num_cut)
            spans, rounds = [], []
            held = recorded.grown(unread, sealer)
        num_steps = 0
        for step in recorded.steps:
            unread += step.given
            spans += step.record.spans
            num_tokens = step.record.num_tokens
            if step.record.progress.num_steps > num_steps:
                rounds.append(unread)
                unread, num_steps = [], step.record.progress.num_steps
        earlier = recorded.context(earlier, sealer)
    return Past(spans, [*rounds, unread] if unread else rounds, num_tokens, held)


# --- decoding ----------------------------------------------------------------------------------------------------

_START: Final = msgspec.json.Decoder(StartRecord)
_STEP: Final = msgspec.json.Decoder(StepRecord)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# The items are decoded one by one, since one kind of them is any JSON object.
_REQUEST: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    one.name: msgspec.json.Decoder(one.type) for one in msgspec.structs.fields(RunRequest) if one.name != "items"
}
_FOLDED: Final = msgspec.json.Decoder(FoldedItem)
_HOSTED: Final = msgspec.json.Decoder(HostedItem)


class _Verbatim(msgspec.Struct):
    """What of the echo has to stay as the client wrote it."""

    tools: list[msgspec.Raw] = []
    tool_choice: msgspec.Raw = msgspec.Raw(b'"auto"')


_VERBATIM: Final = msgspec.json.Decoder(_Verbatim)


def read(start: bytes, steps: Iterable[bytes]) -> Recorded:
    """The records of a run, decoded. Raises ServerError for what cannot be read."""
    try:
        first = _START.decode(start)
        if first.format > FORMAT:
            raise ServerError("The response was stored by a newer version of the server.")
        return Recorded(first, _request(first), [_step(_STEP.decode(step)) for step in steps])
    except (msgspec.DecodeError, RequestError, LookupError, ValueError) as error:
        raise ServerError("The response was stored in a form that cannot be read.") from error


def _request(start: StartRecord) -> RunRequest:
    raws = _FIELDS.decode(start.request)
    fields = {name: decoder.decode(raws[name]) for name, decoder in _REQUEST.items() if name in raws}
    verbatim = _VERBATIM.decode(raws["echo"])
    tools, choice = [tool.copy() for tool in verbatim.tools], verbatim.tool_choice.copy()
    fields["echo"] = msgspec.structs.replace(fields["echo"], tools=tools, tool_choice=choice)
    return RunRequest(items=list(map(decode_item, start.items)), **fields)


def _step(record: StepRecord) -> _Step:
    made = list(map(_made, record.made))
    return _Step(record, list(map(decode_item, record.given)), made, [_entry(raw, made) for raw in record.log])


def _made(raw: msgspec.Raw) -> Made:
    if bytes(raw).startswith(b'{"type":"folded"'):
        return _FOLDED.decode(raw)
    if bytes(raw).startswith(b'{"type":"hosted"'):
        return _HOSTED.decode(raw)
    item = decode_item(raw)
    if not isinstance(item, Call):
        raise ValueError(f"no model makes an item of type {type_of(item)} that does not stream")
    return item


def _entry(raw: msgspec.Raw, made: list[Made]) -> Event | FoldedItem:
    if bytes(raw).startswith(b"{"):
        return decode_event(raw)
    entry = made[int(bytes(raw))]
    if not isinstance(entry, FoldedItem):
        raise ValueError("an item that does not stream stands for no events")
    return entry
