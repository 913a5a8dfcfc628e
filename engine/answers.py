"""The calls of a run and the client's answers to them.

A call is *open* from its `output_item.done` until the loop takes its output. It may be answered while the model still
samples. Answers of one append are checked together, then committed together: `check` changes nothing, `commit` cannot
fail. An identical second answer is a no-op, so that a client which reconnects may resend; a different one is refused.
A message that came along with answers is taken once, too: in an append of nothing but resent answers it is dropped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from engine.content import text_of
from engine.digests import digest_answer, digest_hosted, digest_item, digest_text, same_answer
from engine.errors import RequestError
from engine.events import PendingCall
from engine.growing import Streamable, is_last_from_start, is_part, join, offset_of
from engine.items import (
    ANSWER_TYPES,
    Answer,
    Call,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCallOutput,
    Hosted,
    Item,
    McpApprovalRequest,
    Message,
    Reasoning,
    answer_key,
    call_key,
    item_id,
    type_of,
)
from engine.sorted_list import add_to, is_in


class OpenCall(msgspec.Struct, omit_defaults=True):
    """A call and what is known of its answer: nothing, a growing text, or all of it.

    is_hosted: the server runs it, perhaps after the client has approved it (`answer`); `output` is what came of that.
    """

    call: Call
    answer: Answer | None = None
    text: str = ""
    is_hosted: bool = False
    output: FunctionCallOutput | None = None

    @property
    def is_clients(self) -> bool:
        """Whether the client is to answer it."""
        return not self.is_hosted or isinstance(self.call, McpApprovalRequest)

    @property
    def given(self) -> Answer | None:
        """What the model is given for it; None for now."""
        return self.output if self.is_hosted else self.answer


class Appended(msgspec.Struct, frozen=True):
    """What an append did: the keys it answered, and what is still missing."""

    answered: list[str]
    still_pending: list[str]


@dataclass(frozen=True)
class Batch:
    """The checked content of one append: what `commit` will take in."""

    answers: dict[str, Answer] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether committing it would change nothing."""
        return not (self.answers or self.parts or self.messages)


class Answers:
    """Open calls in call order, and the digests of what answered the earlier ones."""

    __slots__ = ("_before", "_digests", "_given", "_max_output_chars", "_own_contents", "_own_ids", "open")

    def __init__(self, max_output_chars: int, before: "Answers | None" = None) -> None:
        """before: those of the run that this one goes on from. They stay as they are, since others may go on, too."""
        self.open: dict[str, OpenCall] = {}
        self._before = before
        self._digests: dict[str, bytes] = {}
        # Sorted, both: sets take five times as much, and nobody asks but for echoes.
        self._own_ids: list[str] = []
        self._own_contents: list[bytes] = []  # of messages and hosted items: older Codex leaves their ids out
        self._given: dict[bytes, None] = {}  # messages that came along with answers, a set in order
        self._max_output_chars = max_output_chars

    # --- the model's side ---

    def made(self, item: Item) -> None:
        """Remember an item the model made, so that a client which echoes it is understood."""
        if own := item_id(item):
            add_to(self._own_ids, own)
        if isinstance(item, Message):
            add_to(self._own_contents, digest_text(text_of(item.content)))
        elif isinstance(item, Hosted):
            add_to(self._own_contents, digest_hosted(item))

    def called(self, call: Call, *, is_hosted: bool = False) -> None:
        """Open a call: from now on it can be answered, or its output be settled."""
        self.open[call_key(call)] = OpenCall(call, is_hosted=is_hosted)

    def settle(self, output: FunctionCallOutput) -> None:
        """This came of a hosted call."""
        self.open[output.call_id].output = output

    def unanswered(self) -> list[PendingCall]:
        """The calls that still wait for the client, in call order."""
        waiting = ((key, entry) for key, entry in self.open.items() if entry.is_clients and entry.answer is None)
        return [_pending(key, entry.call) for key, entry in waiting]

    @property
    def is_unsettled(self) -> bool:
        """Whether a hosted call runs, or is to run now that it is approved."""
        return any(
            entry.is_hosted and entry.output is None and not (entry.is_clients and entry.answer is None)
            for entry in self.open.values()
        )

    def foreseen(self) -> list[Answer]:
        """The outputs that are known, in call order, up to the first that is not whole; of that what there is."""
        outputs = list[Answer]()
        for key, entry in self.open.items():
            if entry.given is None:
                if entry.text:
                    kind = CustomToolCallOutput if isinstance(entry.call, CustomToolCall) else FunctionCallOutput
                    outputs.append(kind(call_id=key, output=entry.text))
                break
            outputs.append(entry.given)
        return outputs

    def take(self) -> list[Answer]:
        """All outputs in call order; the calls are closed. Only when none is unanswered or unsettled."""
        outputs = []
        for key, entry in self.open.items():
            if entry.given is None:
                raise ValueError(f"call {key} has no answer")
            outputs.append(entry.given)
        self.open.clear()
        return outputs

    def answered(self, answers: dict[str, Answer]) -> None:
        """Remember what answered the calls of the run before, by their keys."""
        self._digests.update((key, digest_answer(answer)) for key, answer in answers.items())

    # --- what was before ---

    def has_answer(self, key: str, answer: Answer) -> bool:
        """Whether a call that is closed has been answered just so. Raises RequestError when it was otherwise."""
        digest = self._digest_of(key)
        if digest is not None and digest != digest_answer(answer):
            raise second_answer(key, answer)
        return digest is not None

    def made_id(self, own: str) -> bool:
        """Whether the model made the item with this id, here or before."""
        return any(is_in(layer._own_ids, own) for layer in self._layers())

    def is_echo(self, item: Item) -> bool:
        """Whether the client sent back one of our own items, as Codex before 0.100 does."""
        if isinstance(item, Reasoning):
            return True
        if (own := item_id(item)) and self.made_id(own):
            return True
        if isinstance(item, Message) and item.role == "assistant":
            return is_in(self._own_contents, digest_text(text_of(item.content)))
        if isinstance(item, Hosted):
            return "id" not in item.data and is_in(self._own_contents, digest_hosted(item))
        if isinstance(item, Call) and not isinstance(item, McpApprovalRequest):
            key = call_key(item)
            return key in self.open or self._digest_of(key) is not None
        return False

    def _layers(self) -> "Iterator[Answers]":
        """These and those before. Walked only for what is unknown here, so the usual turn does not pay for it."""
        layer: Answers | None = self
        while layer is not None:
            yield layer
            layer = layer._before

    def _digest_of(self, key: str) -> bytes | None:
        return next((layer._digests[key] for layer in self._layers() if key in layer._digests), None)

    # --- the journal's side ---

    @property
    def num_remembered(self) -> tuple[int, int]:
        """How many answers and messages are remembered by their digests."""
        return len(self._digests), len(self._given)

    def remembered_since(self, then: tuple[int, int]) -> tuple[dict[str, bytes], list[bytes]]:
        """The digests of answers (by call) and messages that are newer than `num_remembered` was then."""
        digests = islice(reversed(self._digests.items()), len(self._digests) - then[0])
        given = islice(reversed(self._given), len(self._given) - then[1])
        return dict(reversed(list(digests))), list(reversed(list(given)))

    def restore(self, open_calls: Iterable[OpenCall], digests: dict[str, bytes], given: Iterable[bytes]) -> None:
        """Have these open calls, and remember these digests in addition."""
        self.open = {call_key(entry.call): entry for entry in open_calls}
        self._digests.update(digests)
        self._given.update(dict.fromkeys(given))

    # --- the client's side ---

    def check(self, items: list[Item]) -> Batch:
        """What these items would add. Raises RequestError with a path from `input` on; nothing changes."""
        batch = Batch()
        for index, item in enumerate(items):
            try:
                self._check_item(item, batch)
            except RequestError as error:
                raise error.at(f"input[{index}]") from error
        is_resend = batch.repeated and not (batch.answers or batch.parts)
        if is_resend:
            batch.messages[:] = [message for message in batch.messages if digest_item(message) not in self._given]
        return batch

    def new_items(self, items: list[Item]) -> list[Item]:
        """For a run that is over: the items that are neither its own nor repeat an answer it has.

        Raises RequestError, with a path from `input` on, for an output of a call that it never made.
        """
        batch = self.check([item for item in items if isinstance(item, Answer) or not self.is_echo(item)])
        assert not batch.answers  # nothing is open any more, so an answer is a repeated one or was refused
        return list(batch.messages)

    def commit(self, batch: Batch) -> None:
        """Take in what was checked."""
        for key, text in batch.parts.items():
            self.open[key].text = text
        for key, answer in batch.answers.items():
            entry = self.open[key]
            entry.answer, entry.text = answer, ""
            self._digests[call_key(entry.call)] = digest_answer(answer)  # our own key, so the client's is not kept
        if batch.answers or batch.parts:
            self._given.update(dict.fromkeys(map(digest_item, batch.messages)))

    def _check_item(self, item: Item, batch: Batch) -> None:
        if isinstance(item, Message) and item.role != "assistant":
            batch.messages.append(item)
        elif isinstance(item, Answer):
            self._check_answer(item, batch)
        elif not self.is_echo(item):
            raise RequestError(
                f"Item of type '{type_of(item)}' cannot be appended; tool outputs and user, developer or system "
                "messages can.",
                param="type",
            )

    def _check_answer(self, answer: Answer, batch: Batch) -> None:
        key = answer_key(answer)
        if not key:
            raise RequestError("The output names no call.", param="call_id", code="missing_required_parameter")
        entry = self.open.get(key)
        if entry is None or not entry.is_clients:
            self._check_repeat(key, answer, batch)
            return
        check_type(entry.call, answer)
        if isinstance(answer, Streamable) and is_part(answer):
            self._check_part(key, entry, answer, batch)
            return
        # An output without `offset` is whole and takes the place of parts, so a client whose parts were too long can
        # still give a shorter one.
        batch.parts.pop(key, None)
        self._settle(key, entry, answer, batch)

    def _settle(self, key: str, entry: OpenCall, answer: Answer, batch: Batch) -> None:
        """Record a whole answer, unless it repeats the one that is there."""
        earlier = batch.answers.get(key) or entry.answer
        if earlier is None:
            batch.answers[key] = answer
        elif same_answer(earlier, answer):
            batch.repeated.append(key)
        else:
            raise second_answer(key, answer)

    def _check_repeat(self, key: str, answer: Answer, batch: Batch) -> None:
        digest = self._digest_of(key)
        if digest is None:
            raise no_call_found(key, answer)
        # Only whole answers can be told apart by now; a part was sent before the answer was complete: a resend.
        is_whole = not is_part(answer) or is_last_from_start(answer)
        if is_whole and digest != digest_answer(answer):
            raise second_answer(key, answer)
        batch.repeated.append(key)

    def _check_part(self, key: str, entry: OpenCall, answer: Streamable, batch: Batch) -> None:
        """Join a part to what is there; the last part makes the answer."""
        if not isinstance(answer.output, str):
            raise RequestError("An output given in parts must be a string.", param="output")
        if settled := batch.answers.get(key) or entry.answer:
            self._check_part_of_settled(key, settled, answer, batch)
            return
        text = join(batch.parts.get(key, entry.text), answer)
        if len(text) > self._max_output_chars:
            raise RequestError(
                f"The output is longer than {self._max_output_chars} characters.",
                param="output",
                code="output_too_long",
            )
        is_known = answer.status == "in_progress" and text == entry.text and key not in batch.parts
        if is_known:
            batch.repeated.append(key)
        elif answer.status == "in_progress":
            batch.parts[key] = text
        else:
            batch.parts.pop(key, None)
            batch.answers[key] = msgspec.structs.replace(answer, output=text, offset=msgspec.UNSET, status="completed")

    def _check_part_of_settled(self, key: str, settled: Answer, part: Streamable, batch: Batch) -> None:
        whole = settled.output if isinstance(settled, Streamable) else None
        if not (isinstance(whole, str) and isinstance(part.output, str)):
            raise second_answer(key, part)
        start = offset_of(part)
        is_last = part.status != "in_progress"
        ends_right = not is_last or start + len(part.output) == len(whole)
        if not (ends_right and whole.startswith(part.output, start)):
            raise second_answer(key, part)
        batch.repeated.append(key)


def check_type(call: Call, answer: Answer) -> None:
    """Raises RequestError when a call of this kind is answered by another kind of item."""
    expected = ANSWER_TYPES[type_of(call)]
    if type_of(answer) not in expected:
        raise RequestError(
            f"Call {call_key(call)} is a {type_of(call)}; it is answered by {expected[0]}, not {type_of(answer)}.",
            param="type",
        )


def _pending(key: str, call: Call) -> PendingCall:
    kind = type_of(call)
    name = getattr(call, "name", kind.removesuffix("_call"))
    return PendingCall(kind, name, call.id or "", ANSWER_TYPES[kind][0], key)


def no_call_found(key: str, answer: Answer) -> RequestError:
    """The error of an output whose call is unknown."""
    return RequestError(f"No tool call found for function call output with call_id {key}.", param=_key_field(answer))


def second_answer(key: str, answer: Answer) -> RequestError:
    """The error of a second, different answer to a call."""
    return RequestError(f"Call {key} has been answered already, with another output.", param=_key_field(answer))


def _key_field(answer: Answer) -> str:
    return "approval_request_id" if type_of(answer) == "mcp_approval_response" else "call_id"
