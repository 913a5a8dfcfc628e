"""Items to the messages of a chat completion.

Neighbouring items of the model's side (reasoning, text, calls) are one message, as they were when they were sampled. An
output names its call by the id that the service knows: the client's own for calls in its input, the one in the
service's answer for calls that were sampled here, which are answered in their order (see base.Sequence.prepare).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.backends.turns import call_arguments, call_label, hosted_note, output_text, text_only
from engine.content import ComputerScreenshot, Content, InputFile, InputImage, Part, text_of
from engine.errors import RequestError
from engine.items import Answer, Call, Hosted, Item, Message, Reasoning, answer_key, call_key

ReasoningField = Literal["reasoning", "reasoning_content"]


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CallMade(msgspec.Struct, frozen=True):
    id: str
    type: str
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it goes out. What is unset is left out."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallMade] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


def call_made(call_id: str, name: str, arguments: str) -> CallMade:
    """A call in a message. Services read its arguments again: what is no JSON object is told in one."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        arguments = msgspec.json.encode({"malformed": arguments}).decode() if arguments.strip() else "{}"
    return CallMade(call_id, "function", CalledFunction(name, arguments))


def own_message(
    text: str, thoughts: str, calls: list[CallMade], reasoning_field: ReasoningField | None
) -> ChatMessage | None:
    """What the model said in one turn. None for nothing: thoughts alone are no message.

    reasoning_field: under which name thoughts go back; None where they do not.
    """
    has_text = bool(text.strip()) if calls else bool(text)
    if not has_text and not calls:
        return None
    fields: dict[str, Any] = {reasoning_field: thoughts} if reasoning_field and thoughts else {}
    return ChatMessage(role="assistant", content=text if has_text else None, tool_calls=calls or UNSET, **fields)


class Messages:
    """Writes items as messages. name_of: the name of a labelled tool here. open_ids: of calls that wait for outputs."""

    def __init__(
        self, name_of: Callable[[str], str], reasoning_field: ReasoningField | None, open_ids: Sequence[str] = ()
    ) -> None:
        self._name_of = name_of
        self._reasoning_field: ReasoningField | None = reasoning_field
        self._open_ids = list(open_ids)
        self._given_ids: set[str] = set()
        self._written: list[ChatMessage] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[CallMade] = []

    @property
    def open_ids(self) -> list[str]:
        """Of the calls that still have no output."""
        return self._open_ids

    def write(self, items: Sequence[Item]) -> list[ChatMessage]:
        """The messages of all these items. Raises RequestError with a path such as `[2].content[0]`."""
        for index, item in enumerate(items):
            try:
                self._add(item)
            except RequestError as error:
                raise error.at(f"[{index}]") from error
        self._end_own()
        written, self._written = self._written, []
        return written

    def _add(self, item: Item) -> None:
        match item:
            case Message(role="assistant"):
                self._texts.append(text_only(item.content, "content"))
            case Message(role="user"):
                self._say("user", user_content(item.content))
            case Message():
                self._say("system", text_only(item.content, "content"))
            case Reasoning():
                # The summary is what is left where nothing else is.
                self._thoughts += [part.text for part in item.content or item.summary]
            case Hosted():
                self._say("system", hosted_note(item))
            case _ if isinstance(item, Call):
                self._given_ids.add(call_key(item))
                self._calls.append(call_made(call_key(item), self._name_of(call_label(item)), call_arguments(item)))
            case _:
                text = output_text(item)
                self._end_own()
                self._written.append(ChatMessage(role="tool", content=text, tool_call_id=self._id_for(item)))

    def _say(self, role: Literal["system", "user"], content: str | list[dict[str, Any]]) -> None:
        self._end_own()
        self._written.append(ChatMessage(role=role, content=content))

    def _end_own(self) -> None:
        message = own_message("\n\n".join(self._texts), "".join(self._thoughts), self._calls, self._reasoning_field)
        if message is not None:
            self._written.append(message)
        self._texts, self._thoughts, self._calls = [], [], []

    def _id_for(self, answer: Item) -> str:
        assert isinstance(answer, Answer)
        key = answer_key(answer)
        return self._open_ids.pop(0) if self._open_ids and key not in self._given_ids else key


def user_content(content: Content) -> str | list[dict[str, Any]]:
    """Text as it is; with images among it, the parts. Raises RequestError naming `content[j]` for anything else."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return text_only(content, "content")
    return [_part(part, f"content[{index}]") for index, part in enumerate(content)]


def _part(part: Part, where: str) -> dict[str, Any]:
    if isinstance(part, InputFile | ComputerScreenshot):
        kind = part.__struct_config__.tag
        raise RequestError(f"This model takes text and images only, not '{kind}'.", param=where)
    if not isinstance(part, InputImage):
        return {"type": "text", "text": text_of([part])}
    if not part.image_url:
        raise RequestError("This model takes an image by its address or as data, not by a file's id.", param=where)
    return {
        "type": "image_url",
        "image_url": {"url": part.image_url} | ({"detail": part.detail} if part.detail else {}),
    }
