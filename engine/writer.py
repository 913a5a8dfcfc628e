"""Writes the items a model makes into a run's log, as their events come.

One item streams at a time; whatever starts next closes it. Finished items are kept folded, by the log and for `output`.
"""

from collections.abc import Callable, Iterable

import msgspec

from engine.backends.base import CallStart
from engine.calls import PREFIXES, build_call
from engine.events import OutputItemAdded, OutputItemDone, ShellCommandAdded, ShellCommandDelta, ShellCommandDone
from engine.folded import FoldedItem, fold_item
from engine.items import Call, Item, ItemStatus, ShellCall
from engine.log import EventLog
from engine.scaffold import (
    CustomToolCallScaffold,
    FunctionCallScaffold,
    MessageScaffold,
    ReasoningScaffold,
    Scaffold,
)

MintId = Callable[[str], str]


class _Streaming:
    """An item that is being streamed."""

    __slots__ = ("first", "pieces", "scaffold")

    def __init__(self, scaffold: Scaffold, first: int) -> None:
        self.scaffold = scaffold
        self.first = first
        self.pieces: list[str] = []


class ItemWriter:
    """The items of one run; `on_item` is told of each that is finished."""

    def __init__(self, log: EventLog, mint_id: MintId, on_item: Callable[[Item], None]) -> None:
        self.finished: list[FoldedItem | Call] = []
        self._log = log
        self._mint_id = mint_id
        self._on_item = on_item
        self._streaming: _Streaming | None = None
        self._call: CallStart | None = None
        self._call_text: list[str] = []

    @property
    def output(self) -> list[Item]:
        """The finished items."""
        return [entry.item() if isinstance(entry, FoldedItem) else entry for entry in self.finished]

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._call is not None

    def text(self, text: str) -> None:
        """A piece of the model's message."""
        self._stream(text, MessageScaffold, "msg")

    def reasoning(self, text: str) -> None:
        """A piece of the model's reasoning."""
        self._stream(text, ReasoningScaffold, "rs")

    def start_call(self, start: CallStart) -> None:
        """A call begins; it becomes an item that streams, or is collected until its end."""
        self._expect_no_call()
        self.close("completed")
        self._call, self._call_text = start, []
        if start.type not in ("function_call", "custom_tool_call"):
            return
        kind: type[FunctionCallScaffold | CustomToolCallScaffold]
        kind = FunctionCallScaffold if start.type == "function_call" else CustomToolCallScaffold
        item_id, call_id = self._mint_id(PREFIXES[start.type]), self._mint_id("call")
        self._open(kind(len(self.finished), item_id, call_id, start.name, start.namespace or msgspec.UNSET))

    def call_text(self, text: str) -> None:
        """A piece of the call's arguments or input."""
        if self._call is None:
            raise ValueError("no call has started")
        if self._streaming is None:
            self._call_text.append(text)
        elif text:
            self._feed(self._streaming, text)

    def end_call(self) -> Call:
        """Finish the call's item. Raises BackendError when no item can carry what the model wrote."""
        start, self._call = self._call, None
        if start is None:
            raise ValueError("no call has started")
        item = self.close("completed") or self._add_whole(start)
        assert isinstance(item, Call)
        return item

    def close(self, status: ItemStatus) -> Item | None:
        """Finish the item that streams, if one does, and fold its events. A call that does not stream is dropped."""
        streaming, self._streaming, self._call = self._streaming, None, None
        if streaming is None:
            return None
        folded = fold_item(streaming.scaffold, streaming.pieces, status)
        for event in streaming.scaffold.tail(self._log.next, folded.text, status):
            self._log.append(event)
        self._log.fold(folded, streaming.first)
        self.finished.append(folded)
        item = folded.item()
        self._on_item(item)
        return item

    def restore(self, made: Iterable[FoldedItem | Call]) -> None:
        """Have finished these items; the log gets their events otherwise."""
        for entry in made:
            self.finished.append(entry)
            self._on_item(entry.item() if isinstance(entry, FoldedItem) else entry)

    def _stream(self, text: str, kind: type[MessageScaffold] | type[ReasoningScaffold], prefix: str) -> None:
        self._expect_no_call()
        if not text:  # clients choke on empty deltas
            return
        streaming = self._streaming
        if streaming is None or not isinstance(streaming.scaffold, kind):
            self.close("completed")
            streaming = self._open(kind(len(self.finished), self._mint_id(prefix)))
        self._feed(streaming, text)

    def _expect_no_call(self) -> None:
        if self._call is not None:
            raise ValueError(f"a {self._call.type} has not ended")

    def _open(self, scaffold: Scaffold) -> _Streaming:
        streaming = self._streaming = _Streaming(scaffold, self._log.next)
        for event in scaffold.head(self._log.next):
            self._log.append(event)
        return streaming

    def _feed(self, streaming: _Streaming, text: str) -> None:
        self._log.append(streaming.scaffold.delta(self._log.next, text))
        streaming.pieces.append(text)

    def _add_whole(self, start: CallStart) -> Call:
        """Log a call of a kind whose item comes at once."""
        item_id, call_id = self._mint_id(PREFIXES[start.type]), self._mint_id("call")
        call = build_call(start, "".join(self._call_text), item_id=item_id, call_id=call_id)
        index, log = len(self.finished), self._log
        log.append(OutputItemAdded(sequence_number=log.next, output_index=index, item=call))
        if isinstance(call, ShellCall):
            self._log_commands(call, index)
        log.append(OutputItemDone(sequence_number=log.next, output_index=index, item=call))
        self.finished.append(call)
        self._on_item(call)
        return call

    def _log_commands(self, call: ShellCall, output_index: int) -> None:
        log = self._log
        for number, command in enumerate(call.action.get("commands", [])):
            place = {"output_index": output_index, "command_index": number}
            log.append(ShellCommandAdded(sequence_number=log.next, command="", **place))
            log.append(ShellCommandDelta(sequence_number=log.next, delta=command, **place))
            log.append(ShellCommandDone(sequence_number=log.next, command=command, **place))
