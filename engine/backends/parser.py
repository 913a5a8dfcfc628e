"""A step's token ids to deltas: text, reasoning and calls, as they come.

    TEXT ──<think>──▶ REASONING ──</think>──▶ TEXT
    TEXT ──<tool_call>──▶ HEAD ──{"name": "…", "arguments":──▶ ARGUMENTS ──its last }──▶ TAIL ──</tool_call>──▶ TEXT

Only what could still be the start of a tag is held back. Deltas put together are the same whatever the cuts between
ids. Nothing is lost: what looks like a call and turns out to be none (unknown tool, broken JSON) is text. White space
between tags is no text; it parts calls from each other.
"""

import enum
import re
from collections.abc import Sequence
from typing import Any, Final, assert_never

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.chance import Chance
from engine.backends.detokenizer import Detokenizer
from engine.backends.families import Family
from engine.backends.json_scanner import ObjectScanner
from engine.backends.logprobs import PlacedTokens
from engine.backends.toolset import CALL_TYPES, ToolSet
from engine.backends.vocabulary import Vocabulary
from engine.toolspec import Tool

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_MAX_HEAD: Final = 2048  # characters: a bound on rescanning, far above any tool's name


class _State(enum.Enum):
    TEXT = "text"
    REASONING = "reasoning"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"


class StreamParser:
    """Parses one step. `tools` are those it may call: with none, call syntax is text like any other."""

    def __init__(self, vocabulary: Vocabulary, family: Family, tools: ToolSet, *, in_reasoning: bool = False) -> None:
        tags = {family.call_open: _State.HEAD} if tools.by_label else {}
        if family.reasoning:
            tags[family.reasoning[0]] = _State.REASONING
        self._openers = tags
        self._family = family
        self._tools = tools
        self._detokenizer = Detokenizer(vocabulary, _shown(vocabulary, family))
        self._state = _State.REASONING if in_reasoning else _State.TEXT
        self._placed = PlacedTokens(vocabulary)
        self._held = ""
        self._searched = 0  # characters of _held that hold no closing tag of a call
        self._space: str | None = ""  # white space seen since the step's start or a tag; None once text has come
        self._is_after_tag = in_reasoning
        self._scanner = ObjectScanner()
        self._custom_input: list[str] | None = None
        self._deltas: list[Delta] = []
        self.num_calls = 0  # that have ended, closing tag included

    def feed(self, ids: Sequence[int], chances: Sequence[Chance] | None = None) -> list[Delta]:
        """The deltas that these ids complete; may be empty. chances: of the ids, to be put beside the text."""
        self._held += self._detokenizer.feed(ids) if chances is None else self._placed_text(ids, chances)
        while self._held and self._advance():
            pass
        return self._take()

    def _placed_text(self, ids: Sequence[int], chances: Sequence[Chance]) -> str:
        texts = []
        for token_id, chance in zip(ids, chances, strict=True):
            texts.append(text := self._detokenizer.feed([token_id]))
            if self._detokenizer.bytes_of(token_id):
                self._placed.add(token_id, chance, len(text))
        return "".join(texts)

    def close(self) -> list[Delta]:
        """The step is over: what was held back. A call whose arguments were cut off gets no CallEnd."""
        rest = self._detokenizer.close()
        self._placed.add_text(len(rest))
        self._held += rest
        while self._held and self._advance():
            pass
        match self._state:
            case _State.HEAD:
                self._call_or_text(self._split_held(len(self._held)), closed=False)
            case _State.TEXT:
                self._text(self._split_held(len(self._held)))
                if self._space and not self._is_after_tag:
                    self._say(self._space)
            case _State.REASONING:
                self._emit(ReasoningDelta(self._held))
            case _State.ARGUMENTS:
                self._flush_custom_input()
            case _State.TAIL:
                pass
            case never:
                assert_never(never)
        self._held = ""
        return self._take()

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _advance(self) -> bool:
        """One transition, or as much as the held text allows. True when there may be more to do."""
        match self._state:
            case _State.TEXT:
                return self._in_text()
            case _State.REASONING:
                return self._in_reasoning()
            case _State.HEAD:
                return self._in_head()
            case _State.ARGUMENTS:
                return self._in_arguments()
            case _State.TAIL:
                return self._in_tail()
            case never:
                assert_never(never)

    # --- text and reasoning

    def _in_text(self) -> bool:
        places = {at: tag for tag in self._openers if (at := self._held.find(tag)) >= 0}
        if not places:
            keep = max((_overlap(self._held, tag) for tag in self._openers), default=0)
            self._text(self._split_held(len(self._held) - keep))
            return False
        at = min(places)
        self._text(self._split_held(at))
        self._split_held(len(places[at]))
        self._enter(self._openers[places[at]])
        return True

    def _in_reasoning(self) -> bool:
        assert self._family.reasoning
        tag = self._family.reasoning[1]
        at = self._held.find(tag)
        if at < 0:
            self._emit(ReasoningDelta(self._split_held(len(self._held) - _overlap(self._held, tag))))
            return False
        self._emit(ReasoningDelta(self._split_held(at)))
        self._split_held(len(tag))
        self._enter(_State.TEXT)
        return True

    def _text(self, text: str) -> None:
        if self._space is None:
            self._say(text)
            return
        self._space += text
        if stripped := self._space.lstrip():
            self._say(stripped if self._is_after_tag else self._space)
            self._space = None

    def _say(self, text: str) -> None:
        """Give out text that ends where what is held begins."""
        if text:
            self._emit(TextDelta(text, self._placed.take(len(text), len(self._held))))

    # --- calls

    def _in_head(self) -> bool:
        head = _HEAD.match(self._held[:_MAX_HEAD])
        tool = self._tools.by_label.get(_unescape(head[1])) if head else None
        if head and tool:
            self._split_held(head.end())
            self._start_call(tool)
            self._enter(_State.ARGUMENTS)
            return True
        close = self._family.call_close
        at = self._held.find(close, self._searched)
        if at < 0:
            self._searched = max(0, len(self._held) - len(close) + 1)
            return False
        body = self._split_held(at)
        self._split_held(len(close))
        self._call_or_text(body, closed=True)
        return True

    def _start_call(self, tool: Tool) -> None:
        self._emit(CallStart(CALL_TYPES[tool.kind], tool.name, tool.namespace))
        self._custom_input = [] if tool.kind == "custom" else None
        self._scanner = ObjectScanner()

    def _in_arguments(self) -> bool:
        end = self._scanner.scan(self._held)
        piece = self._split_held(len(self._held) if end is None else end)
        if self._custom_input is None:
            self._emit(CallDelta(piece))
        else:
            self._custom_input.append(piece)
        if end is None:
            return False
        self._flush_custom_input()
        self._emit(CallEnd())
        self._enter(_State.TAIL)
        return True

    def _in_tail(self) -> bool:
        rest = self._held.lstrip().removeprefix("}").lstrip()
        close = self._family.call_close
        if len(rest) < len(close) and close.startswith(rest):
            return False
        self._held = rest.removeprefix(close)
        self._enter(_State.TEXT)
        self.num_calls += 1
        return True

    def _flush_custom_input(self) -> None:
        """A custom tool's free text is given out whole: its JSON escapes end where the string ends."""
        if self._custom_input:
            self._emit(CallDelta(_free_input("".join(self._custom_input))))
        self._custom_input = None

    def _call_or_text(self, body: str, *, closed: bool) -> None:
        """A call that did not come in the usual form: other key order, arguments as a string; or no call at all."""
        if call := _loose_call(body, self._tools):
            tool, arguments = call
            self._start_call(tool)
            self._custom_input = None
            self._emit(CallDelta(_free_input(arguments) if tool.kind == "custom" else arguments))
            self._emit(CallEnd())
            self._enter(_State.TEXT)
            self.num_calls += 1
            return
        self._state = _State.TEXT
        self._searched = 0
        self._text(self._family.call_open + body + (self._family.call_close if closed else ""))

    # --- small parts

    def _enter(self, state: _State) -> None:
        self._state = state
        self._searched = 0
        self._space = ""
        self._is_after_tag = True

    def _split_held(self, at: int) -> str:
        piece, self._held = self._held[:at], self._held[at:]
        return piece

    def _emit(self, delta: Delta) -> None:
        """Add a delta; neighbours of one kind become one."""
        last = self._deltas[-1] if self._deltas else None
        match delta, last:
            case ((TextDelta("") | ReasoningDelta("") | CallDelta("")), _):
                pass
            case TextDelta(text, tokens), TextDelta(before, earlier):
                self._deltas[-1] = TextDelta(before + text, earlier + tokens)
            case ReasoningDelta(text), ReasoningDelta(before):
                self._deltas[-1] = ReasoningDelta(before + text)
            case CallDelta(text), CallDelta(before):
                self._deltas[-1] = CallDelta(before + text)
            case _:
                self._deltas.append(delta)


def _shown(vocabulary: Vocabulary, family: Family) -> frozenset[int]:
    """Control tokens that the parser must see as text, because they are the family's tags."""
    return frozenset(vocabulary.controls[tag] for tag in family.markup if tag in vocabulary.controls)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` could begin with."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _unescape(name: str) -> str:
    try:
        return msgspec.json.decode(f'"{name}"', type=str) if "\\" in name else name
    except msgspec.DecodeError:
        return name


def _free_input(arguments: str) -> str:
    """The `input` of a custom tool's arguments, cut off or not; the raw text when there is none to be found."""
    for text in (arguments, arguments + '"}'):
        try:
            return msgspec.json.decode(text, type=dict[str, str])["input"]
        except (msgspec.DecodeError, KeyError):
            continue
    return arguments


def _loose_call(body: str, tools: ToolSet) -> tuple[Tool, str] | None:
    """The tool and the arguments' JSON text of a call in any key order, or None when it is no valid call."""
    try:
        call = msgspec.json.decode(body.strip(), type=dict[str, msgspec.Raw])
        name: Any = msgspec.json.decode(call["name"])
        raw = call["arguments"] if "arguments" in call else call["parameters"]
        arguments: Any = msgspec.json.decode(raw)
        text = arguments if isinstance(arguments, str) else bytes(raw).decode()
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, KeyError):
        return None
    tool = tools.by_label.get(name) if isinstance(name, str) else None
    return (tool, text) if tool else None
