"""A streamed chat completion to deltas: reasoning, text and calls, one after the other.

In a completion they are fields side by side, whose parts may come in turns; a run's items come one at a time. So what
comes is put into blocks in the order of their beginnings. The first block streams; those behind it wait until it is
over: words when another block has begun, a call when its arguments are whole, all of them when the step ends. With
services that say one thing after the other, which is all that were seen, nothing waits.

White space alone is no text: models write it between reasoning and calls.
"""

from collections import deque
from typing import Final, Protocol

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.remote.chat_calls import CallTable, OpenCall
from engine.backends.remote.chat_chunks import CallPart, Choice, logprobs_of
from engine.content import TokenLogprob


class Tools(Protocol):
    """See `chat_tools.ChatTools`."""

    def start_of(self, name: str) -> CallStart: ...
    def is_free_text(self, name: str) -> bool: ...


class _Words:
    """Reasoning or text: the pieces that have yet to be said."""

    def __init__(self, *, is_text: bool) -> None:
        self.is_text = is_text
        self._pieces: list[tuple[str, tuple[TokenLogprob, ...]]] = []
        self._is_blank = is_text  # nothing but white space so far

    def take(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        self._pieces.append((text, logprobs))
        self._is_blank = self._is_blank and not text.strip()

    def say(self) -> list[Delta]:
        if self._is_blank:
            return []
        pieces, self._pieces = self._pieces, []
        return [TextDelta(text, logprobs) if self.is_text else ReasoningDelta(text) for text, logprobs in pieces]

    def end(self, *, is_cut: bool) -> list[Delta]:
        return self.say()


class _Called:
    """A call. Free text comes as a whole: it is the value of a JSON string."""

    def __init__(self, call: OpenCall, tools: Tools) -> None:
        self.call = call
        self._tools = tools
        self._pieces: list[str] = []
        self._has_started = self._has_arguments = False

    @property
    def is_whole(self) -> bool:
        return self.call.is_whole and bool(self.call.name)

    def take(self, part: CallPart) -> None:
        if arguments := self.call.take(part):
            self._pieces.append(arguments)

    def say(self) -> list[Delta]:
        if not self.call.name:
            return []
        deltas: list[Delta] = [] if self._has_started else [self._tools.start_of(self.call.name)]
        self._has_started = True
        if not self._tools.is_free_text(self.call.name):
            pieces, self._pieces = self._pieces, []
            self._has_arguments = self._has_arguments or bool(pieces)
            deltas += map(CallDelta, pieces)
        return deltas

    def end(self, *, is_cut: bool) -> list[Delta]:
        deltas = self.say()
        if not self._has_started or (is_cut and not self.call.is_whole):
            return deltas
        if self._tools.is_free_text(self.call.name):
            deltas.append(CallDelta(_input_of("".join(self._pieces))))
        elif not self._has_arguments:
            deltas.append(CallDelta("{}"))
        return [*deltas, CallEnd()]


class ChatParser:
    """The deltas of one step."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._table = CallTable()
        self._blocks: deque[_Words | _Called] = deque()
        self._block_of: dict[OpenCall, _Called] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far, as it came."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return "".join(self._thoughts)

    @property
    def calls(self) -> list[OpenCall]:
        """The calls so far, in order."""
        return self._table.calls

    @property
    def has_begun(self) -> bool:
        """Whether anything has come."""
        return bool(self._texts or self._thoughts or self.calls)

    def feed(self, choice: Choice) -> list[Delta]:
        """The deltas that a choice completes; may be empty."""
        delta = choice.delta or (None if self.has_begun else choice.message)  # or it has all been said
        if delta is None:
            return []
        if reasoning := delta.reasoning or delta.reasoning_content:
            self._thoughts.append(reasoning)
            self._words(is_text=False).take(reasoning)
        if text := (delta.content or "") + (delta.refusal or ""):
            self._texts.append(text)
            self._words(is_text=True).take(text, logprobs_of(choice))
        for part in delta.tool_calls or ():
            self._called(part).take(part)
        return self._say()

    def close(self, *, is_cut: bool) -> list[Delta]:
        """The step is over: all that waited. is_cut: a call whose arguments are not whole has no end."""
        blocks, self._blocks = self._blocks, deque()
        return [delta for block in blocks for delta in block.end(is_cut=is_cut)]

    def _words(self, *, is_text: bool) -> _Words:
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, _Words) and last.is_text is is_text:
            return last
        words = _Words(is_text=is_text)
        self._blocks.append(words)
        return words

    def _called(self, part: CallPart) -> _Called:
        call = self._table.call_of(part)
        if call not in self._block_of:
            self._block_of[call] = _Called(call, self._tools)
            self._blocks.append(self._block_of[call])
        return self._block_of[call]

    def _say(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._blocks:
            first = self._blocks[0]
            is_over = first.is_whole if isinstance(first, _Called) else len(self._blocks) > 1
            if not is_over:
                return deltas + first.say()
            self._blocks.popleft()
            deltas += first.end(is_cut=False)
        return deltas


class _FreeText(msgspec.Struct):
    input: str


_FREE_TEXT: Final = msgspec.json.Decoder(_FreeText)


def _input_of(arguments: str) -> str:
    """The text in `{"input": …}`; what is not of this form is the text itself."""
    try:
        return _FREE_TEXT.decode(arguments).input
    except msgspec.DecodeError:
        return arguments
