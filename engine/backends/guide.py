"""Holding a job's tokens to its Constraint: which ids may come, and which must.

A Guide follows one job. It is in one of three states, and `Constraint.mode` says where it begins and what moves it:

    waiting   free text; on_trigger: the trigger id holds it; decide: the first row decides, or the first two
    holding   the grammar's mask applies; what it forces is handed out at once, without a model step, if wanted
    free      no grammar any more (decide, below its threshold)

`always` begins holding. A grammar that is complete and can take no more ends an `always` or `decide` step (the stop
id is forced), and sends an `on_trigger` step back to waiting. While a complete grammar could still go on, its mask
contains the stop ids.

A Guide is a function of the ids it was given: replaying a job's ids brings a new Guide to the same state.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from pathlib import Path

import llguidance
import llguidance.numpy
import numpy as np

from engine.backends.constraint import Constraint
from engine.backends.sampling import Row, log_prob

# A matcher takes 2 ms to build and 1 µs to copy; a run uses the same grammar in every step.
_MAX_CACHED = 64


class GrammarError(Exception):
    """The grammar is not one, or cannot go on from here. The message is llguidance's."""


class _State(Enum):
    WAITING = "waiting"
    HOLDING = "holding"
    FREE = "free"


class Guides:
    """Makes Guides for one tokenizer; remembers compiled grammars."""

    def __init__(self, tokenizer_file: Path, *, vocab_size: int, stop_ids: Sequence[int]) -> None:
        """vocab_size: the model's, which may be larger than the tokenizer's. Takes 0.3 s at 49k ids."""
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer_file.read_text(encoding="utf-8"), n_vocab=vocab_size, eos_token=list(stop_ids)
        )
        self._matchers: dict[str, llguidance.LLMatcher] = {}
        self._stop_ids = list(stop_ids)
        self._helper = ThreadPoolExecutor(1, "masks")

    def guide(self, constraint: Constraint, *, hands_out: bool = True) -> "Guide":
        """A Guide at the start of a job. hands_out: whether what the grammar forces may come without being drawn.

        Raises GrammarError.
        """
        matcher = self._matcher(constraint.grammar)
        return Guide(constraint, matcher, self._tokenizer.vocab_size, self._stop_ids, hands_out=hands_out)

    def look_ahead(self, guides: Iterable["Guide"]) -> None:
        """Begin with the masks of the next draws: to be called before the model takes a step, which is long.

        llguidance lets go of the GIL meanwhile. A mask takes 5 µs as a rule, some take milliseconds.
        """
        held = [guide for guide in guides if guide.lacks_mask]
        if held:
            done = self._helper.submit(_fill_masks, held)
            for guide in held:
                guide.wait_for(done)

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        matcher = self._matchers.pop(grammar, None) or llguidance.LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        self._matchers[grammar] = matcher  # moves to the end: the first key is the one not used for longest
        if len(self._matchers) > _MAX_CACHED:
            del self._matchers[next(iter(self._matchers))]
        return matcher.deep_copy()


def _fill_masks(guides: Sequence["Guide"]) -> None:
    for guide in guides:
        guide.fill_mask()


class Guide:
    """Follows the ids of one job: `start`, then `restrict` before and `advance` after every draw."""

    def __init__(
        self,
        constraint: Constraint,
        matcher: llguidance.LLMatcher,
        vocab_size: int,
        stop_ids: list[int],
        *,
        hands_out: bool,
    ) -> None:
        self._hands_out = hands_out
        self._constraint = constraint
        self._matcher = matcher
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
        self._stop_ids = stop_ids
        self._state = _State.HOLDING if constraint.mode == "always" else _State.WAITING
        self._score = 0.0  # of a trial
        self._begins_call: bool | None = None  # what a trial came to
        self._has_mask = False  # for the next draw
        self._filling: Future[None] | None = None

    def start(self, ids: Sequence[int] = ()) -> list[int]:
        """Begin after `ids`, which the job has already; the ids that must come next. Raises GrammarError."""
        for token_id in ids:
            self._consume(token_id)
        return self._forced()

    def restrict(self, row: Row) -> None:
        """Set the logits of ids that may not come to -inf, in place. row: [vocab], as the model made it.

        Raises GrammarError.
        """
        if self._state is _State.WAITING and self._constraint.mode == "decide":
            self._decide(row)
        elif self._state is _State.HOLDING:
            self._await_mask()
            self._check()
            is_allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(row)]
            row[is_allowed == 0] = -np.inf

    @property
    def lacks_mask(self) -> bool:
        """Whether the next draw needs a mask that nobody has begun with."""
        return self._state is _State.HOLDING and not self._has_mask and self._filling is None

    def fill_mask(self) -> None:
        """Compute the next draw's mask; the one thing here that another thread may do."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)
        self._has_mask = True

    def wait_for(self, filling: "Future[None]") -> None:
        """Somebody else fills the mask; it is waited for before anything else."""
        self._filling = filling

    def _await_mask(self) -> None:
        if self._filling is not None:
            self._filling.result()
            self._filling = None
        if not self._has_mask:
            self.fill_mask()

    def advance(self, token_id: int) -> list[int]:
        """Take note of a drawn id; the ids that must follow it. Raises GrammarError."""
        self._consume(token_id)
        return [] if token_id in self._stop_ids else self._forced()

    def trial(self, row: Row) -> int | None:
        """The id to try before a decision that needs the row behind it as well; None when none is needed."""
        has_decided = self._begins_call is not None
        if self._state is not _State.WAITING or self._constraint.second_id is None or has_decided:
            return None
        self._score = log_prob(row, self._trigger_id)
        # A second factor only makes it less.
        return self._trigger_id if self._score >= self._constraint.threshold else None

    def settle(self, row: Row) -> bool:
        """Whether what was tried begins a call, by the row behind it. If not, it may not come first."""
        assert self._constraint.second_id is not None
        self._score += log_prob(row, self._constraint.second_id)
        self._begins_call = self._score >= self._constraint.threshold
        return self._begins_call

    def _decide(self, row: Row) -> None:
        """Let only the trigger come first, or all but the trigger."""
        trigger = self._trigger_id
        is_held = self._begins_call
        if is_held is None:
            is_held = log_prob(row, trigger) >= self._constraint.threshold
        logit = row[trigger]
        if is_held:
            row.fill(-np.inf)
        row[trigger] = logit if is_held else -np.inf

    @property
    def _trigger_id(self) -> int:
        if self._constraint.trigger_id is None:
            raise GrammarError(f"mode {self._constraint.mode} needs a trigger")
        return self._constraint.trigger_id

    def _consume(self, token_id: int) -> None:
        if self._state is _State.WAITING:
            if token_id == self._trigger_id:
                self._state = _State.HOLDING
            elif self._constraint.mode == "decide":
                self._state = _State.FREE
        if self._state is _State.HOLDING:
            if self._filling is not None:
                self._await_mask()
            self._matcher.consume_token(token_id)
            self._has_mask = False
            self._check()
            self._release()

    def _forced(self) -> list[int]:
        ids: list[int] = []
        if not self._hands_out:  # the mask leaves nothing else, be it the stop id after a complete grammar
            return ids
        while self._state is _State.HOLDING and (more := self._matcher.compute_ff_tokens()):
            self._matcher.consume_tokens(more)
            self._has_mask = False
            self._check()
            ids += more
            self._release()
        if self._state is _State.HOLDING and self._matcher.is_stopped() and not (ids and ids[-1] in self._stop_ids):
            ids.append(self._stop_ids[0])
        return ids

    def _release(self) -> None:
        """After the whole of an `on_trigger` grammar: free text again, until the trigger's next coming."""
        if self._constraint.mode == "on_trigger" and self._matcher.is_stopped():
            self._state = _State.WAITING
            self._matcher.reset()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())
