"""One text as it comes out of a model, in pieces, and how far it may go on to the client.

Text goes out as far as every policy's watch has cleared it. A call's arguments go out together, when all of them are
cleared: a client runs the call then.

Pure: questions to judges come out, and what they said comes in.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from engine.backends.base import CallDelta, ReasoningDelta, TextDelta
from engine.safety.config import Place
from engine.safety.policies import Classifier, Judged, Policies
from engine.safety.verdict import Verdict
from engine.safety.views import argument_texts
from engine.safety.watch import ClassifierWatch, JudgedWatch

Piece = TextDelta | ReasoningDelta | CallDelta


@dataclass(frozen=True)
class Said:
    """What a policy has said of a text."""

    policy: Classifier | Judged
    place: Place
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Question:
    """What a judged policy's model is to be asked. `stretch`: the text that waits for it; None for what was given."""

    policy: Judged
    place: Place
    text: str
    stretch: "Stretch | None" = None


class Stretch:
    """Pieces of one kind in a row."""

    def __init__(self, kind: type[Piece], policies: Policies) -> None:
        place: Place = "arguments" if kind is CallDelta else "output"
        self.kind, self.place = kind, place
        self.is_over = False
        self._classified = [ClassifierWatch(policy) for policy in policies.classifiers[place]]
        self._judged = {policy.name: JudgedWatch(policy) for policy in policies.judged[place]}
        watches: list[ClassifierWatch | JudgedWatch] = [*self._classified, *self._judged.values()]
        self._holding = [watch for watch in watches if watch.policy.action == "block"]
        self._pieces: deque[Piece] = deque()
        self._arguments: list[str] = []
        self._num_chars = 0
        self._num_out = 0

    @property
    def is_out(self) -> bool:
        """Whether it is over and all of it has been taken."""
        return self.is_over and not self._pieces

    # --- the model's side ---

    def feed(self, piece: Piece) -> Iterator[Said | Question]:
        """One piece more."""
        self._pieces.append(piece)
        self._num_chars += len(piece.text)
        if self.place == "arguments":
            self._arguments.append(piece.text)
        yield from self._classify(piece.text, is_last=False)
        if self.place != "arguments":  # those are put to a judge as a whole
            yield from self._ask(piece.text, is_last=False)

    def close(self) -> Iterator[Said | Question]:
        """There is no more of it."""
        self.is_over = True
        yield from self._classify("", is_last=True)
        if self.place != "arguments":
            yield from self._ask("", is_last=True)
            return
        texts = argument_texts("".join(self._arguments))
        for watch in self._classified:
            for text in texts[1:]:
                yield Said(watch.policy, self.place, watch.look_again(text))
        yield from self._ask("\n".join(texts), is_last=True)

    def answered(self, question: Question) -> Iterator[Question]:
        """A judge has spoken; whether for the better is not asked here."""
        if text := self._judged[question.policy.name].answered():
            yield Question(question.policy, self.place, text, self)

    def _classify(self, text: str, *, is_last: bool) -> Iterator[Said]:
        for watch in self._classified:
            yield Said(watch.policy, self.place, watch.feed(text, is_last=is_last))

    def _ask(self, text: str, *, is_last: bool) -> Iterator[Question]:
        for watch in self._judged.values():
            if asked := watch.feed(text, is_last=is_last):
                yield Question(watch.policy, self.place, asked, self)

    # --- the client's side ---

    def take(self) -> list[Piece]:
        """What may go out and has not."""
        limit = self._limit()
        taken: list[Piece] = []
        while self._pieces and (head := self._split(self._pieces.popleft(), limit)):
            self._num_out += len(head.text)
            taken.append(head)
        return taken

    def _limit(self) -> int:
        """How many of its characters may be out."""
        if self.place != "arguments":
            return min((watch.cleared for watch in self._holding), default=self._num_chars)
        is_ready = not self._holding or (self.is_over and all(watch.is_clear for watch in self._holding))
        return self._num_chars if is_ready else 0

    def _split(self, piece: Piece, limit: int) -> Piece | None:
        """The part of the next piece that may go out, None for none of it; what may not is put back."""
        if self._num_out + self._num_needed(piece) <= limit:
            return piece
        room = limit - self._num_out
        if room <= 0 or _is_rated(piece):
            self._pieces.appendleft(piece)
            return None
        self._pieces.appendleft(msgspec.structs.replace(piece, text=piece.text[room:]))
        return msgspec.structs.replace(piece, text=piece.text[:room])

    def _num_needed(self, piece: Piece) -> int:
        """How many characters have to be cleared for all of the piece.

        Its last token may go on in the next piece, and its log-probability spells the whole token out.
        """
        num_chars = len(piece.text)
        if not (isinstance(piece, TextDelta) and piece.logprobs and self._holding):
            return num_chars
        num_needed = num_chars + len(piece.logprobs[-1].token)
        return min(num_needed, self._num_chars - self._num_out) if self.is_over else num_needed


def _is_rated(piece: Piece) -> bool:
    return isinstance(piece, TextDelta) and bool(piece.logprobs)
