"""What a run has to say to the server: outputs of calls, whole or in parts, and messages, until they are sent.

Everything that is ready when the writer comes by goes out as one append. Pieces of a growing output that pile up
meanwhile become one part, and an output that was finished before any part went out is sent whole.

What was sent to a run that is stored is kept: its server may die before it has written that down.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

from engine.content import Content, InputText, text_of
from engine.encodable import encodable
from engine.items import CustomToolCallOutput, FunctionCallOutput, McpApprovalResponse, Message, answer_key

AnswerType = Literal["function_call_output", "custom_tool_call_output"]
Outgoing = FunctionCallOutput | CustomToolCallOutput | McpApprovalResponse | Message

_SHORTENED: Final = "The tool's output of {chars} characters does not fit into the context; ask for less."


@dataclass
class _Draft:
    """An output that is not wholly sent. `num_sent` counts characters."""

    answer_type: AnswerType
    num_sent: int = 0
    unsent: list[str] = field(default_factory=list)
    whole: Content | None = None
    sent: list[str] = field(default_factory=list)  # if that is kept

    def rewind(self) -> None:
        """Nothing of it was sent."""
        self.num_sent, self.unsent, self.sent = 0, self.sent + self.unsent, []


class Outbox:
    """Outputs and messages in the order in which they became ready. `is_kept`: what is sent may be asked for again."""

    def __init__(self) -> None:
        self.is_kept = False
        self._sent: dict[str, _Draft | Outgoing] = {}
        self._drafts: dict[str, _Draft] = {}
        self._ready: dict[str, None] = {}
        self._others: list[Outgoing] = []

    def add_piece(self, key: str, answer_type: AnswerType, text: str) -> None:
        """Grow the output of a call that is still running."""
        if text:
            self._draft(key, answer_type).unsent.append(encodable(text))

    def finish(self, key: str, answer_type: AnswerType, output: Content) -> None:
        """Complete a call's output; `output` is the whole of it, pieces included."""
        draft = self._draft(key, answer_type)
        draft.whole = encodable(output) if isinstance(output, str) else output

    def fail(self, key: str, answer_type: AnswerType, message: str) -> None:
        """Complete a call's output by an error text, after whatever pieces there were."""
        draft = self._draft(key, answer_type)
        is_untouched = not draft.num_sent and not draft.unsent
        self.add_piece(key, answer_type, message if is_untouched else f"\n{message}")
        draft.whole = ""

    def add(self, item: Outgoing) -> None:
        """Send an item that is ready as it is."""
        self._others.append(item)

    def take(self) -> list[Outgoing]:
        """Everything that is ready; it counts as sent."""
        ready, self._ready = self._ready, {}
        others, self._others = self._others, []
        if self.is_kept:
            self._sent |= {key: item for item in others if (key := key_of(item))}
        return [*(self._write(key) for key in ready), *others]

    def give_again(self, keys: Collection[str]) -> None:
        """The outputs of these calls are wanted from their beginning, as far as they are known; no others are."""
        for key in keys:
            draft = self._sent.pop(key, None) or self._drafts.get(key)
            if isinstance(draft, _Draft):
                draft.rewind()
                self._drafts[key], self._ready[key] = draft, None
            elif draft is not None:
                self._others.append(draft)

    def say_again(self, message: Message) -> None:
        """This message is wanted, once, whether it was sent or not."""
        self._others = [message, *(item for item in self._others if item is not message)]

    def drop(self, keys: Collection[str]) -> None:
        """These calls were never made."""
        for key in keys:
            self._drafts.pop(key, None)
            self._ready.pop(key, None)
            self._sent.pop(key, None)
        self._others = [item for item in self._others if key_of(item) not in keys]

    def _draft(self, key: str, answer_type: AnswerType) -> _Draft:
        self._ready[key] = None
        return self._drafts.setdefault(key, _Draft(answer_type))

    def _write(self, key: str) -> Outgoing:
        draft = self._drafts[key]
        start, text = draft.num_sent, "".join(draft.unsent)
        draft.num_sent, draft.unsent = start + len(text), []
        if self.is_kept:
            draft.sent.append(text)
        if draft.whole is None:
            return _part(draft.answer_type, key, text, start, "in_progress")
        del self._drafts[key]
        if self.is_kept:
            self._sent[key] = draft
        if start == 0:
            return _output(draft.answer_type, key, draft.whole or text)
        return _part(draft.answer_type, key, text, start, "completed")


def _output(answer_type: AnswerType, key: str, output: Content) -> Outgoing:
    match answer_type:
        case "function_call_output":
            return FunctionCallOutput(call_id=key, output=output)
        case "custom_tool_call_output":
            return CustomToolCallOutput(call_id=key, output=output)
        case _:
            assert_never(answer_type)


def _part(
    answer_type: AnswerType, key: str, text: str, offset: int, status: Literal["in_progress", "completed"]
) -> Outgoing:
    kind = FunctionCallOutput if answer_type == "function_call_output" else CustomToolCallOutput
    return kind(call_id=key, output=text, offset=offset, status=status)


def user_message(text: str) -> Message:
    """A message of the user's, as an item."""
    return Message(role="user", content=[InputText(text=encodable(text))])


def key_of(item: Outgoing) -> str | None:
    """The call that an item answers; None for a message."""
    return None if isinstance(item, Message) else answer_key(item)


def shortened(item: Outgoing) -> Outgoing:
    """The same answer with a few words in place of an output that did not fit; anything else as it is."""
    if not isinstance(item, FunctionCallOutput | CustomToolCallOutput) or item.offset:
        return item
    return type(item)(call_id=item.call_id, output=_SHORTENED.format(chars=len(text_of(item.output))))
