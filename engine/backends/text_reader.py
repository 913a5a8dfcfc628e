"""What readers of a step's ids have in common: ids to text, text held back, deltas given out, calls begun and ended.

A reader is a machine over the text that it holds. `_advance` makes one transition, or as much as the text allows.
Deltas put together are the same whatever the cuts between ids.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from engine.backends.chance import Chance
from engine.backends.detokenizer import Detokenizer
from engine.backends.logprobs import PlacedTokens
from engine.backends.toolset import CALL_TYPES, label_of
from engine.backends.vocabulary import Vocabulary
from engine.toolspec import Tool

MAX_HEAD: Final = 2048  # characters: a bound on what is held for a call's name, far above any


class TextReader(ABC):
    """Reads one step. `labels`: the tools that it has called so far."""

    def __init__(self, vocabulary: Vocabulary, shown: Iterable[str]) -> None:
        """shown: control tokens that are to be seen as text."""
        controls = vocabulary.controls
        self._detokenizer = Detokenizer(vocabulary, frozenset(controls[tag] for tag in shown if tag in controls))
        self._placed = PlacedTokens(vocabulary)
        self._controls = controls
        self._held = ""
        self._custom_input: list[str] | None = None
        self._deltas: list[Delta] = []
        self.labels: list[str] = []
        self.num_calls = 0  # that have ended, closing tag included
        self.num_reasoning = 0  # ids that were part of the model's thoughts, their tags included

    def feed(self, ids: Sequence[int], chances: Sequence[Chance] | None = None) -> list[Delta]:
        """The deltas that these ids complete; may be empty. chances: of the ids, to be put beside the text."""
        for index, token_id in enumerate(ids):
            was_thinking = self._is_thinking
            text = self._detokenizer.feed([token_id])
            if chances is not None and self._detokenizer.bytes_of(token_id):
                self._placed.add(token_id, chances[index], len(text))
            self._held += text
            while self._held and self._advance():
                pass
            self.num_reasoning += was_thinking or self._is_thinking
        return self._take()

    def close(self, *, is_cut: bool = False) -> list[Delta]:
        """The step is over: what was held back. A call whose arguments were cut off gets no CallEnd.

        is_cut: the model would have gone on. What may be the beginning of a tag or a call is not shown then, nor is the
        beginning of a character.
        """
        if rest := "" if is_cut else self._detokenizer.close():
            self._placed.add_text(len(rest))
            self._held += rest
        while self._held and self._advance():
            pass
        self._finish(is_cut)
        self._held = ""
        return self._take()

    @property
    def _is_thinking(self) -> bool:
        """Whether what was read last is part of the model's thoughts."""
        return False

    @abstractmethod
    def _advance(self) -> bool:
        """Whether there may be more to do with what is held."""

    @abstractmethod
    def _finish(self, is_cut: bool) -> None:
        """Give out what is left at the step's end."""

    # --- calls

    def _start_call(self, tool: Tool) -> None:
        self._emit(CallStart(CALL_TYPES[tool.kind], tool.name, tool.namespace))
        self._custom_input = [] if tool.kind == "custom" else None
        self.labels.append(label_of(tool.name, tool.namespace))

    def _argue(self, piece: str) -> None:
        """A piece of the arguments' JSON. A custom tool's free text is given out whole: its escapes end with it."""
        if self._custom_input is None:
            self._emit(CallDelta(piece))
        else:
            self._custom_input.append(piece)

    def _end_arguments(self) -> None:
        self._flush_custom_input()
        self._emit(CallEnd())

    def _flush_custom_input(self) -> None:
        if self._custom_input:
            self._emit(CallDelta(_free_input("".join(self._custom_input))))
        self._custom_input = None

    # --- small parts

    def _say(self, text: str) -> None:
        """Give out text that ends where what is held begins."""
        if text:
            self._emit(TextDelta(text, self._placed.take(len(text), len(self._held))))

    def _num_begun(self, tags: Iterable[str]) -> int:
        """How many characters at the end may be the beginning of a tag. One that is a token comes as a whole."""
        return max((overlap(self._held, tag) for tag in tags if tag not in self._controls), default=0)

    def _split_held(self, at: int) -> str:
        piece, self._held = self._held[:at], self._held[at:]
        return piece

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

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


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` could begin with, and is not whole in."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _free_input(arguments: str) -> str:
    """The `input` of a custom tool's arguments, cut off or not; the raw text when there is none to be found."""
    for text in (arguments, arguments + '"}'):
        try:
            return msgspec.json.decode(text, type=dict[str, str])["input"]
        except (msgspec.DecodeError, KeyError):
            continue
    return arguments
