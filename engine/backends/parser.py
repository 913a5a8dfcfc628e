"""A step's token ids to deltas: text, reasoning and calls, as they come, in the syntax of the model's family.

    TEXT ──<think>──▶ REASONING ──</think>──▶ TEXT
    TEXT ──tag that opens calls──▶ HEAD ──name──▶ ARGUMENTS ──their end──▶ TAIL ──tag that closes calls──▶ TEXT
                                     ◀──────────────── another call ────────────┘

Only what could still be the start of a tag is held back. Deltas put together are the same whatever the cuts between
ids. Nothing is lost: what looks like a call and turns out to be none (unknown tool, broken JSON) is text; but where the
step was cut, what may be the beginning of a tag or of a call is not shown, as nobody can say what it is. White space
between tags is no text; it parts calls from each other. A family without a tag (Llama) calls where a turn begins with
a JSON object; what is there is held until that is a call, or is none.
"""

import enum
import re
from functools import lru_cache
from typing import Any, Final, assert_never

import msgspec

from engine.backends.arguments import Arguments, JsonArguments, arguments_of
from engine.backends.base import ReasoningDelta
from engine.backends.call_syntax import CallSyntax
from engine.backends.families import Family
from engine.backends.json_scanner import ObjectScanner
from engine.backends.literals import Verdict, follow, lenient
from engine.backends.text_reader import MAX_HEAD, TextReader, overlap
from engine.backends.toolset import ToolSet
from engine.backends.vocabulary import Vocabulary
from engine.toolspec import Tool

_PARTING: Final = " \n\t;"  # what Llama parts calls by
_BARE_CALL: Final = re.compile(r"\s*;?\s*(?=\{)")
_EXTRA_KEYS: Final = re.compile(r"\s*,[^{}\[\]]*(?=\})")  # behind the arguments: an id, say

_EXTRA_BEGUN: Final = re.compile(r"\s*,[^{}\[\]]*")


class _State(enum.Enum):
    TEXT = "text"
    REASONING = "reasoning"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"


class StreamParser(TextReader):
    """Parses one step. `tools` are those it may call: with none, call syntax is text like any other."""

    def __init__(self, vocabulary: Vocabulary, family: Family, tools: ToolSet, *, in_reasoning: bool = False) -> None:
        super().__init__(vocabulary, family.markup)
        self._syntax = family.calls
        self._openers = _openers(family, tools)
        self._may_begin = family.calls.begins_turn and bool(tools.by_label)
        self._reasoning_end = family.reasoning[1] if family.reasoning else ""
        self._tools = tools
        self._state = _State.REASONING if in_reasoning else _State.TEXT
        self._searched = 0  # characters of _held that hold no end of a call
        self._space: str | None = ""  # white space seen since the step's start or a tag; None once text has come
        self._is_after_tag = self._was_after_tag = in_reasoning
        self._opening = ""  # what the call under way was opened by
        self._arguments: Arguments = JsonArguments()

    @property
    def _is_thinking(self) -> bool:
        return self._state is _State.REASONING

    def _finish(self, is_cut: bool) -> None:
        match self._state:
            case _State.HEAD:
                rest = self._split_held(len(self._held))
                if not self._called_loosely(rest) and not (is_cut and self._may_be_call(rest)):
                    self._no_call(rest)
            case _State.TEXT:
                self._text(self._split_held(len(self._held) - (self._num_unclear() if is_cut else 0)))
                if self._space and not self._is_after_tag and not is_cut:
                    self._say(self._space)
            case _State.REASONING:
                num_begun = self._num_begun([self._reasoning_end]) if is_cut else 0
                self._emit(ReasoningDelta(self._held[: len(self._held) - num_begun]))
            case _State.ARGUMENTS:
                self._flush_custom_input()
            case _State.TAIL:
                pass
            case never:
                assert_never(never)

    def _advance(self) -> bool:
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
        if self._may_begin and self._space is not None and self._begins_bare():
            return self._state is _State.HEAD
        places = {at: tag for tag in self._openers if (at := self._held.find(tag)) >= 0}
        if not places:
            keep = max((overlap(self._held, tag) for tag in self._openers), default=0)
            self._text(self._split_held(len(self._held) - keep))
            return False
        at = min(places)
        self._text(self._split_held(at))
        self._opening = self._split_held(len(places[at]))
        self._enter(self._openers[places[at]])
        return True

    def _begins_bare(self) -> bool:
        """Whether this begins a call without a tag, or still may."""
        if begun := _BARE_CALL.match(self._held):
            self._opening = self._split_held(begun.end())
            self._enter(_State.HEAD)
            return True
        return not self._held.strip(_PARTING)

    def _in_reasoning(self) -> bool:
        tag = self._reasoning_end
        at = self._held.find(tag)
        if at < 0:
            self._emit(ReasoningDelta(self._split_held(len(self._held) - overlap(self._held, tag))))
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

    # --- calls

    def _in_head(self) -> bool:
        head = _head(self._syntax).match(self._held[:MAX_HEAD])
        tool = self._tools.by_label.get(self._name(head[1])) if head else None
        if head and tool:
            self._split_held(head.end())
            self._start_call(tool)
            self._arguments = arguments_of(tool, self._syntax)
            self._enter(_State.ARGUMENTS)
            return True
        end = self._end_of_no_call()
        if end is None:
            return False
        body = self._split_held(end)
        if not self._called_loosely(body):
            self._no_call(body)
        return True

    def _name(self, written: str) -> str:
        return _unescape(written) if self._syntax.names_in_json else written

    def _end_of_no_call(self) -> int | None:
        """Where what cannot be read as it comes is over; None: not yet."""
        close = self._syntax.close
        if close:
            at = self._held.find(close, self._searched)
            self._searched = max(0, len(self._held) - len(close) + 1)
            return None if at < 0 else at + len(close)
        if self._syntax.is_json:
            start = self._held.find("{")
            end = None if start < 0 else ObjectScanner().scan(self._held[start:])
            if end is not None:
                return start + end
        return None if len(self._held) <= MAX_HEAD else len(self._held)

    def _in_arguments(self) -> bool:
        piece = self._arguments.read(self._held)
        self._split_held(piece.size)
        self._argue(piece.json)
        if piece.is_last:
            self._end_arguments()
            self._enter(_State.TAIL)
            if not self._syntax.has_tail:
                self._end_call(_State.TEXT)
        return piece.is_last or piece.size > 0

    def _in_tail(self) -> bool:
        syntax, at = self._syntax, self._end_of_call()
        if at is None:
            return False
        rest = self._held[at:]
        closed = follow(rest, syntax.end + syntax.close)
        again: int | Verdict = Verdict.OTHER
        if syntax.between is not None and syntax.before_name:
            again = follow(rest, syntax.between + syntax.before_name)
        if isinstance(again, int):
            between = follow(rest, syntax.between or "")
            self._held = rest[between:] if isinstance(between, int) else rest
            self._end_call(_State.HEAD)
        elif Verdict.MORE in (closed, again):
            return False
        else:
            self._held = rest[closed:] if isinstance(closed, int) else rest
            self._end_call(_State.TEXT)
        return True

    def _end_of_call(self) -> int | None:
        """Where the call is over, after the arguments; what is missing is not waited for. None: not yet."""
        end = follow(self._held, self._syntax.after_arguments)
        if end is Verdict.OTHER and self._syntax.is_json and (extra := _EXTRA_KEYS.match(self._held)):
            end = follow(self._held[extra.end() :], self._syntax.after_arguments)
            return extra.end() + end if isinstance(end, int) else None
        if end is Verdict.OTHER and self._syntax.is_json and _EXTRA_BEGUN.fullmatch(self._held[:MAX_HEAD]):
            return None
        return 0 if end is Verdict.OTHER else end if isinstance(end, int) else None

    def _num_unclear(self) -> int:
        """How many characters at the end of a text may belong to a call."""
        may_part_calls = self._may_begin and self._space is not None and not self._held.strip(_PARTING)
        return len(self._held) if may_part_calls else self._num_begun(self._openers)

    def _may_be_call(self, body: str) -> bool:
        """Whether this begins a call: always behind a tag, and without one as far as it is written like one."""
        if self._opening.strip(_PARTING):
            return True
        at = follow(body, self._syntax.begin + self._syntax.before_name)
        return at is Verdict.MORE or (
            isinstance(at, int) and any(label.startswith(body[at:].partition('"')[0]) for label in self._tools.by_label)
        )

    def _called_loosely(self, body: str) -> bool:
        """Whether it is a call, in another form than the usual one: other key order, arguments as a string."""
        syntax = self._syntax
        bare = body.removesuffix(syntax.close) if syntax.close else body
        if syntax.is_json and (call := _loose_call(bare.strip().lstrip("["), self._tools)):
            tool, arguments = call
            self._start_call(tool)
            self._argue(arguments)
            self._end_arguments()
            self._end_call(_State.TEXT if syntax.close or not syntax.end else _State.TAIL)
            return True
        return False

    def _no_call(self, body: str) -> None:
        self._state = _State.TEXT
        self._searched = 0
        self._is_after_tag = self._was_after_tag
        self._text(self._opening + body)

    # --- small parts

    def _end_call(self, then: _State) -> None:
        self.num_calls += 1
        self._enter(then)

    def _enter(self, state: _State) -> None:
        self._state = state
        self._searched = 0
        self._space = ""
        self._was_after_tag, self._is_after_tag = self._is_after_tag, True


def _openers(family: Family, tools: ToolSet) -> dict[str, _State]:
    tags = {}
    if tools.by_label and family.calls.open:
        tags[family.calls.open] = _State.HEAD
    if tools.by_label and family.calls.begins_turn:
        tags["<|python_tag|>"] = _State.HEAD
    if family.reasoning:
        tags[family.reasoning[0]] = _State.REASONING
    return tags


@lru_cache
def _head(syntax: CallSyntax) -> re.Pattern[str]:
    """From behind the opening to the arguments; the first group is the name as it is written."""
    begin = f"(?:{lenient(syntax.begin)})?" if syntax.begin.strip() else ""
    name = r'((?:[^"\\]|\\.)*)' if syntax.names_in_json else r"([^\s<>\[\]{}]+)"
    behind = lenient(syntax.before_arguments)
    if syntax.pairs is None:
        behind += r"\s*(?=\{)"
    else:
        ends = (syntax.pairs.before_name, syntax.after_arguments or syntax.end + syntax.close)
        behind += rf"\s*(?={'|'.join(map(re.escape, ends))})"
    # Some of Mistral's models write an id of their own behind the name.
    return re.compile(rf"\s*{begin}\s*{lenient(syntax.before_name)}{name}\s*(?:\[CALL_ID\]\w+)?{behind}")


def _unescape(name: str) -> str:
    try:
        return msgspec.json.decode(f'"{name}"', type=str) if "\\" in name else name
    except msgspec.DecodeError:
        return name


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
