"""A step of a gpt-oss model to deltas: messages on channels, which end with tokens of their own.

    HEADER ──<|message|>──▶ BODY ──<|end|>, <|call|>, <|return|>──▶ HEADER

A header says to which channel a message belongs, and to whom it goes: `analysis` is reasoning, what goes to
`functions.NAME` is a call, all else is text (a `commentary` is what users are told before a call). The first message's
header begins in the prompt. Nothing is lost: a message to nobody that we know is text.
"""

import enum
import re
from typing import Final, assert_never

from engine.backends.arguments import JsonArguments
from engine.backends.base import ReasoningDelta
from engine.backends.families import Family
from engine.backends.text_reader import TextReader, overlap
from engine.backends.toolset import ToolSet
from engine.backends.vocabulary import Vocabulary
from engine.toolspec import Tool

_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")  # the last one where a model forgot the first
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")


class _State(enum.Enum):
    HEADER = "header"
    TEXT = "text"
    REASONING = "reasoning"
    ARGUMENTS = "arguments"
    AFTER_CALL = "after call"


class HarmonyParser(TextReader):
    """Parses one step. `tools` are those it may call."""

    def __init__(self, vocabulary: Vocabulary, family: Family, tools: ToolSet) -> None:
        super().__init__(vocabulary, family.markup)
        self._tools = tools
        self._state = _State.HEADER
        self._arguments = JsonArguments()

    @property
    def _is_thinking(self) -> bool:
        return self._state is _State.REASONING

    def _finish(self, is_cut: bool) -> None:
        match self._state:
            case _State.HEADER:
                if not is_cut and not _CHANNEL.search(self._held):
                    self._say(self._split_held(len(self._held)))
            case _State.TEXT | _State.REASONING:
                self._give(self._split_held(len(self._held) - (self._num_begun(_ENDS) if is_cut else 0)))
            case _State.ARGUMENTS:
                self._flush_custom_input()
            case _State.AFTER_CALL:
                pass
            case never:
                assert_never(never)

    def _advance(self) -> bool:
        match self._state:
            case _State.HEADER:
                return self._in_header()
            case _State.ARGUMENTS:
                return self._in_arguments()
            case _:
                return self._in_body()

    def _in_header(self) -> bool:
        at = self._held.find(_MESSAGE)
        if at < 0:
            return False
        header = self._split_held(at)
        self._split_held(len(_MESSAGE))
        tool = self._called_by(header)
        if tool:
            self._start_call(tool)
            self._arguments = JsonArguments()
            self._state = _State.ARGUMENTS
        else:
            channel = _CHANNEL.search(header)
            self._state = _State.REASONING if channel and channel[1] == "analysis" else _State.TEXT
        return True

    def _called_by(self, header: str) -> Tool | None:
        recipient = _RECIPIENT.search(header)
        return self._tools.by_label.get(recipient[1]) if recipient else None

    def _in_arguments(self) -> bool:
        tag, at = self._next_end()
        if tag is None:
            at -= self._num_of_a_tag()
        piece = self._arguments.read(self._held[:at])
        self._split_held(piece.size)
        self._argue(piece.json)
        if piece.is_last:
            self._end_arguments()
            self._state = _State.AFTER_CALL
        elif tag and piece.size == at:  # broken off by its own end: what came is all there is
            self._flush_custom_input()
            self._state = _State.AFTER_CALL
        return self._state is _State.AFTER_CALL

    def _in_body(self) -> bool:
        tag, at = self._next_end()
        if tag is None:
            at -= self._num_of_a_tag()
        self._give(self._split_held(at))
        if tag is None:
            return False
        self._split_held(len(tag))
        self.num_calls += self._state is _State.AFTER_CALL
        self._state = _State.HEADER
        return True

    def _give(self, text: str) -> None:
        match self._state:
            case _State.TEXT:
                self._say(text)
            case _State.REASONING:
                self._emit(ReasoningDelta(text))
            case _:
                pass

    def _num_of_a_tag(self) -> int:
        """How many characters at the end of what is held may be the beginning of a tag."""
        return max(overlap(self._held, end) for end in _ENDS)

    def _next_end(self) -> tuple[str | None, int]:
        """The tag that ends the message, and where; None and the length of what is held where there is none yet."""
        places = {at: tag for tag in _ENDS if (at := self._held.find(tag)) >= 0}
        return (places[min(places)], min(places)) if places else (None, len(self._held))
