"""Writes the items of hosted calls into a run's log: announced when a call begins, finished when it has run.

Several may be under way, beside the item that the model streams, and they finish in any order. An item's place in the
output (`output_index`) is settled when it is announced, so the finished items, in order, lack those under way.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from engine.hosted.base import HostedCall, HostedResult, Listed, Sketch
from engine.hosted.shapes import SHAPES, item_of
from engine.item_events import OutputItemAdded, OutputItemDone
from engine.items import FunctionCall, Hosted, Item
from engine.log import EventLog
from engine.made import HOSTED_PREFIX, HostedItem, Made
from engine.toolspec import Tool


class _UnderWay:
    """A hosted call's item that has been announced; `pieces` of its arguments while the model writes them."""

    __slots__ = ("call", "index", "pieces")

    def __init__(self, call: HostedCall, index: int) -> None:
        self.call = call
        self.index = index
        self.pieces: list[str] = []


class HostedWriter:
    """The hosted items of one run. `finished` is shared with the writer of the other ones."""

    __slots__ = ("_finished", "_growing", "_log", "_mint_id", "_on_item", "_under_way")  # one for every run

    def __init__(
        self, finished: list[Made], log: EventLog, mint_id: Callable[[str], str], on_item: Callable[[Item], None]
    ) -> None:
        self._finished = finished
        self._log = log
        self._mint_id = mint_id
        self._on_item = on_item
        self._under_way: dict[str, _UnderWay] = {}  # by the items' ids
        self._growing: _UnderWay | None = None

    @property
    def next_index(self) -> int:
        """The `output_index` of the next item of any kind, when none streams."""
        return len(self._finished) + len(self._under_way)

    @property
    def is_in_call(self) -> bool:
        """Whether the model writes a call."""
        return self._growing is not None

    @property
    def under_way(self) -> list[HostedCall]:
        """The calls that are announced and not finished."""
        return [under_way.call for under_way in self._under_way.values()]

    # --- what the model says ---

    def start_call(self, tool: Tool) -> None:
        """A call of this tool begins."""
        call = HostedCall(self._mint_id(SHAPES[tool.hosted or ""].prefix), self._mint_id(HOSTED_PREFIX), tool)
        self._growing = self._announce(call)

    def call_text(self, text: str) -> None:
        """A piece of the call's arguments."""
        growing = self._growing
        assert growing is not None
        if text:
            growing.pieces.append(text)
            self._log_all(growing, SHAPES[growing.call.tool.hosted or ""].piece(text))

    def end_call(self) -> HostedCall:
        """The call is whole; it may run."""
        growing, self._growing = self._growing, None
        assert growing is not None
        growing.call = msgspec.structs.replace(growing.call, arguments="".join(growing.pieces))
        self._log_all(growing, SHAPES[growing.call.tool.hosted or ""].called(growing.call))
        return growing.call

    def add_approved(self, tool: Tool, arguments: str, approval_request_id: str) -> HostedCall:
        """Announce, whole, a call that the client has approved."""
        item_id, shape = self._mint_id(SHAPES[tool.hosted or ""].prefix), SHAPES[tool.hosted or ""]
        under_way = self._announce(HostedCall(item_id, approval_request_id, tool, "", approval_request_id))
        under_way.call = msgspec.structs.replace(under_way.call, arguments=arguments)
        self._log_all(under_way, [*shape.piece(arguments), *shape.called(under_way.call)])
        return under_way.call

    # --- what the tool does ---

    def tell(self, call: HostedCall, sketch: Sketch) -> None:
        """Log an event of a call that runs; one that has been cut has no more of them."""
        if under_way := self._under_way.get(call.id):
            self._log_all(under_way, [sketch])

    def finish(self, call: HostedCall, result: HostedResult) -> None:
        """The call has run."""
        under_way = self._under_way[call.id]
        self._log_all(under_way, SHAPES[call.tool.hosted or ""].ended(result))
        status = "completed" if result.error is None else "failed"
        self._finish(under_way, item_of(call, status, result))

    def close(self) -> None:
        """The run is over: what is under way will never finish."""
        self._growing = None
        for under_way in list(self._under_way.values()):
            self._finish(under_way, item_of(under_way.call, "incomplete"))

    def add_listed(self, listed: Listed) -> None:
        """An item that a tool shows when its run begins, with all its events."""
        head: dict[str, Any] = {"id": self._mint_id(listed.prefix)}
        begun, ended = listed.begun | head, listed.ended | head
        index = self.next_index
        self._log.append(OutputItemAdded(sequence_number=self._log.next, output_index=index, item=begun))
        self._log_events(listed.sketches, begun["id"], index)
        self._done(ended, index)
        self._keep(HostedItem(ended), index)

    # --- inside ---

    def _announce(self, call: HostedCall) -> _UnderWay:
        under_way = _UnderWay(call, self.next_index)
        self._under_way[call.id] = under_way
        begun = item_of(call, "in_progress")
        self._log.append(OutputItemAdded(sequence_number=self._log.next, output_index=under_way.index, item=begun))
        self._log_all(under_way, SHAPES[call.tool.hosted or ""].opening())
        return under_way

    def _log_all(self, under_way: _UnderWay, sketches: Iterable[Sketch]) -> None:
        self._log_events(sketches, under_way.call.id, under_way.index)

    def _log_events(self, sketches: Iterable[Sketch], item_id: str, index: int) -> None:
        for sketch in sketches:
            self._log.append(sketch(sequence_number=self._log.next, item_id=item_id, output_index=index))

    def _finish(self, under_way: _UnderWay, data: dict[str, Any]) -> None:
        call = under_way.call
        del self._under_way[call.id]
        self._done(data, under_way.index)
        is_own = call.approval_request_id is None  # an approved one is in the context as its request
        self._keep(HostedItem(data, in_context(call) if is_own else None), under_way.index)

    def _done(self, data: dict[str, Any], index: int) -> None:
        self._log.append(OutputItemDone(sequence_number=self._log.next, output_index=index, item=data))

    def _keep(self, made: HostedItem, index: int) -> None:
        num_missing = sum(other.index < index for other in self._under_way.values())
        self._finished.insert(index - num_missing, made)
        self._on_item(Hosted(made.data["type"], made.data))


def in_context(call: HostedCall) -> FunctionCall:
    """The call as the model's context has it."""
    return FunctionCall(
        call_id=call.call_id,
        name=call.tool.name,
        arguments=call.arguments,
        namespace=call.tool.namespace or msgspec.UNSET,
    )
