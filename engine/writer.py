"""Writes the items a model makes into a run's log, as their events come.

One item streams at a time; whatever starts next closes it. Finished items are kept folded, by the log and for `output`.
The items of hosted calls are announced when the model begins to call and finished when the tool has run: any number of
them may be under way beside the item that streams (hosted_writer.py).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from engine.backends.base import CallStart
from engine.calls import PREFIXES, build_call
from engine.content import TokenLogprob
from engine.folded import fold_item
from engine.hosted_writer import HostedWriter
from engine.item_style import ItemStyle
from engine.items import Call, Item, ItemStatus
from engine.log import EventLog
from engine.made import Made, shown
from engine.scaffold import Scaffold
from engine.scaffold_call import CustomToolCallScaffold, FunctionCallScaffold, call_events
from engine.scaffold_compaction import CompactionScaffold
from engine.scaffold_message import MessageScaffold, RatedMessageScaffold
from engine.scaffold_reasoning import ReasoningScaffold, SummaryScaffold
from engine.toolspec import Tool

MintId = Callable[[str], str]
_PLAIN: Final = ItemStyle()


class _Streaming:
    """An item that is being streamed."""

    __slots__ = ("first", "pieces", "scaffold")

    def __init__(self, scaffold: Scaffold, first: int) -> None:
        self.scaffold = scaffold
        self.first = first
        self.pieces: list[str] = []


class ItemWriter:
    """The items of one run; `on_item` is told of each that is finished."""

    __slots__ = ("_call", "_call_text", "_log", "_mint_id", "_on_item", "_streaming", "_style", "finished", "hosted")

    def __init__(
        self, log: EventLog, mint_id: MintId, on_item: Callable[[Item], None], style: ItemStyle = _PLAIN
    ) -> None:
        self.finished: list[Made] = []
        self._log = log
        self._mint_id = mint_id
        self._on_item = on_item
        self._style = style
        self._streaming: _Streaming | None = None
        self._call: CallStart | None = None
        self._call_text: list[str] = []
        self.hosted = HostedWriter(self.finished, log, mint_id, on_item)

    @property
    def output(self) -> list[Item]:
        """The finished items."""
        return list(map(shown, self.finished))

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._call is not None or self.hosted.is_in_call

    # --- what the model says ---

    def text(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """A piece of the model's message."""
        self._expect_no_call()
        if not text:  # clients choke on empty deltas
            return
        streaming = self._streaming
        if streaming is None or not isinstance(streaming.scaffold, MessageScaffold):
            streaming = self._open("msg", self._style.message)
        if isinstance(streaming.scaffold, RatedMessageScaffold):
            streaming.scaffold.rated.append([msgspec.Raw(msgspec.json.encode(token)) for token in logprobs])
        self._feed(streaming, text)

    def reasoning(self, text: str) -> None:
        """A piece of the model's reasoning."""
        self._expect_no_call()
        if not text:
            return
        streaming = self._streaming
        if streaming is None or not isinstance(streaming.scaffold, ReasoningScaffold | SummaryScaffold):
            streaming = self._open("rs", self._style.reasoning)
        self._feed(streaming, text)

    def start_call(self, start: CallStart) -> None:
        """A call begins; it becomes an item that streams, or is collected until its end."""
        self._expect_no_call()
        self.close("completed")
        self._call, self._call_text = start, []
        if start.type not in ("function_call", "custom_tool_call"):
            return
        kind = FunctionCallScaffold if start.type == "function_call" else CustomToolCallScaffold
        namespace = start.namespace or msgspec.UNSET
        self._open(
            PREFIXES[start.type],
            lambda index, item_id: kind(index, item_id, self._mint_id("call"), start.name, namespace),
        )

    def start_hosted_call(self, tool: Tool) -> None:
        """A call begins that the server is to run."""
        self._expect_no_call()
        self.close("completed")
        self.hosted.start_call(tool)

    def call_text(self, text: str) -> None:
        """A piece of the call's arguments or input."""
        if self.hosted.is_in_call:
            self.hosted.call_text(text)
            return
        if self._call is None:
            raise ValueError("no call has started")
        if self._streaming is None:
            self._call_text.append(text)
        elif text:
            self._feed(self._streaming, text)

    def end_call(self) -> Call:
        """Finish the call's item. Raises BackendError when no item can carry what the model wrote."""
        start = self._call
        if start is None:
            raise ValueError("no call has started")
        item = self.close("completed") or self._add_whole(start)
        assert isinstance(item, Call)
        return item

    # --- what happens to its context ---

    def start_compaction(self) -> None:
        """The context is being compacted. Raises ValueError within a call."""
        self._expect_no_call()
        self._open("cmp", CompactionScaffold)

    def end_compaction(self, encrypted_content: str) -> Item:
        """This is left of it. Raises ValueError when no compaction has started."""
        streaming = self._streaming
        if streaming is None or not isinstance(streaming.scaffold, CompactionScaffold):
            raise ValueError("no compaction has started")
        scaffold = msgspec.structs.replace(streaming.scaffold, encrypted_content=encrypted_content)
        return self._finish(scaffold, streaming, "completed")

    # --- ends ---

    def close(self, status: ItemStatus, *, is_final: bool = False) -> Item | None:
        """Finish the item that streams, if one does. A call or compaction that comes whole is dropped.

        is_final: nothing comes after it, so a message is the run's answer and not what it says on the way.
        """
        streaming, self._streaming, self._call = self._streaming, None, None
        if streaming is None or isinstance(streaming.scaffold, CompactionScaffold):
            return None
        scaffold = self._style.finished(streaming.scaffold, "".join(streaming.pieces), is_final=is_final)
        return self._finish(scaffold, streaming, status)

    def _finish(self, scaffold: Scaffold, streaming: _Streaming, status: ItemStatus) -> Item:
        """Log the end of an item and fold its events."""
        self._streaming = None
        folded = fold_item(scaffold, streaming.pieces, status)
        for event in scaffold.tail(self._log.next, folded.text, status):
            self._log.append(event)
        self._log.fold(folded, streaming.first)
        self.finished.append(folded)
        item = folded.item()
        self._on_item(item)
        return item

    def restore(self, entry: Made) -> Item:
        """Have finished this item; the log gets its events otherwise."""
        self.finished.append(entry)
        item = shown(entry)
        self._on_item(item)
        return item

    def _expect_no_call(self) -> None:
        if self._call is not None or self.hosted.is_in_call:
            raise ValueError("a call has not ended")

    def _open(self, prefix: str, make: Callable[[int, str], Scaffold]) -> _Streaming:
        """Announce an item, behind the one that streams."""
        if self._streaming is not None:
            self.close("completed")
        scaffold = make(self.hosted.next_index, self._mint_id(prefix))
        streaming = self._streaming = _Streaming(scaffold, self._log.next)
        for event in scaffold.head(self._log.next):
            self._log.append(event)
        return streaming

    def _feed(self, streaming: _Streaming, text: str) -> None:
        self._log.append(streaming.scaffold.delta(self._log.next, text, len(streaming.pieces)))
        streaming.pieces.append(text)

    def _add_whole(self, start: CallStart) -> Call:
        """Log a call of a kind whose item comes at once."""
        item_id, call_id = self._mint_id(PREFIXES[start.type]), self._mint_id("call")
        call = build_call(start, "".join(self._call_text), item_id=item_id, call_id=call_id)
        for event in call_events(call, self.hosted.next_index, self._log.next):
            self._log.append(event)
        self.finished.append(call)
        self._on_item(call)
        return call
