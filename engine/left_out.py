"""Hosted calls that a client leaves out of the history it sends, in the places where the run before had them.

Codex keeps nothing of an item that it does not know. When it then sends everything anew, the model would not learn
what its hosted calls have given, and call again. What the client has left out is known here as long as its last run is:
where the input repeats all else that the run's context holds, item by item, the calls and their outputs are put back.
"""

from collections.abc import Iterable
from typing import Any

from engine.answers import Answers
from engine.content import Content, InputFile, InputImage, text_of
from engine.items import (
    Answer,
    Call,
    FunctionCall,
    FunctionCallOutput,
    Hosted,
    Item,
    McpApprovalRequest,
    Message,
    Reasoning,
    answer_key,
    call_key,
)
from engine.made import is_internal


def with_left_out(items: list[Item], context: list[Item], answers: Answers) -> list[Item]:
    """The input with what it lacks of the context of the run before; unchanged where it repeats that otherwise.

    answers: of that run, whose calls may still be open.
    """
    whole: list[Item] = []
    place = 0
    for one in context:
        if is_internal(one):
            whole.append(one)
            continue
        place = _behind_hosted(items, place, one)
        if place < len(items) and _is_same(items[place], one):
            whole.append(one)
            place += 1
        elif isinstance(one, Reasoning):
            whole.append(one)
        elif not isinstance(one, McpApprovalRequest):  # one that the client does not know, and so did not answer
            return items
    whole += _outputs_first(items[place:], answers)
    return whole if _has_hosted_calls(whole) else items


def _behind_hosted(items: list[Item], place: int, one: Item) -> int:
    """The place of the next item that the context has as it is: of a hosted call it has the call and its output."""
    while place < len(items) and isinstance(items[place], Hosted) and not _is_same(items[place], one):
        place += 1
    return place


def _outputs_first(items: list[Item], answers: Answers) -> list[Item]:
    """What follows on the context: outputs of its open calls, in their order, and then all else."""
    given = {answer_key(item): item for item in items if isinstance(item, Answer)}
    outputs: list[Item] = []
    for key, entry in answers.open.items():
        if output := entry.output if entry.is_hosted else given.get(key):
            outputs.append(output)
    taken = {id(output) for output in outputs}
    return [*outputs, *(item for item in items if id(item) not in taken and not _is_echo(item, answers))]


def _is_echo(item: Item, answers: Answers) -> bool:
    return isinstance(item, Hosted) and answers.is_echo(item)


def _has_hosted_calls(items: Iterable[Item]) -> bool:
    """Whether hosted calls are among them, and each has its output."""
    internal = list(filter(is_internal, items))
    calls = {item.call_id for item in internal if isinstance(item, FunctionCall)}
    return bool(calls) and calls == {item.call_id for item in internal if isinstance(item, FunctionCallOutput)}


def _is_same(one: Item, other: Item) -> bool:
    """Whether the client means this item: it may leave out ids, and of reasoning it may send what it likes."""
    if isinstance(one, Message) and isinstance(other, Message):
        return (one.role, *_said(one.content)) == (other.role, *_said(other.content))
    if isinstance(one, Call) and isinstance(other, Call):
        return call_key(one) == call_key(other)
    if isinstance(one, Answer) and isinstance(other, Answer):
        return answer_key(one) == answer_key(other)
    return type(one) is type(other) and (isinstance(one, Reasoning) or one == other)


def _said(content: Content) -> tuple[str, list[Any]]:
    """What a message says, however it is written: its text, and all parts that have none."""
    parts = [] if isinstance(content, str) else content
    return text_of(content), [part for part in parts if isinstance(part, InputImage | InputFile)]
