"""Hosted calls that a client leaves out of the history it sends, in the places where the run before had them.

Codex keeps nothing of an item that it does not know. When it then sends everything anew, the model would not learn
what its hosted calls have given, and call again. What the client has left out is known here as long as its last run is:
where the input repeats all else that the run's context holds, item by item, the calls and their outputs are put back.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from engine.answers import Answers
from engine.content import Content, InputFile, InputImage, text_of
from engine.errors import RequestError
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

_PLACE: Final = re.compile(r"input\[(\d+)\](.*)")


@dataclass(frozen=True)
class Whole:
    """An input with what it lacked. places: of each item in the input as it came, None for what was not in it."""

    items: list[Item]
    places: list[int | None]

    @contextmanager
    def telling_own_places(self) -> Iterator[None]:
        """Around what takes these items: errors name the place in the input as it came."""
        try:
            yield
        except RequestError as error:
            if found := _PLACE.fullmatch(error.param or ""):
                place = self.places[int(found[1])] if int(found[1]) < len(self.places) else None
                error.param = "input" if place is None else f"input[{place}]{found[2]}"
            raise


def with_left_out(items: list[Item], context: list[Item], answers: Answers) -> Whole | None:
    """The input with what it lacks of the context of the run before; None where it repeats that otherwise.

    answers: of that run, whose calls may still be open.
    """
    whole: list[tuple[Item, int | None]] = []
    place = 0
    for one in context:
        if is_internal(one):
            whole.append((one, None))
            continue
        place = _behind_hosted(items, place, one)
        if place < len(items) and _is_same(items[place], one):
            whole.append((one, place))
            place += 1
        elif isinstance(one, Reasoning):
            whole.append((one, None))
        elif not isinstance(one, McpApprovalRequest):  # one that the client does not know, and so did not answer
            return None
    whole += _outputs_first(list(enumerate(items))[place:], answers)
    found = Whole([item for item, _ in whole], [place for _, place in whole])
    return found if _has_hosted_calls(found.items) else None


def _behind_hosted(items: list[Item], place: int, one: Item) -> int:
    """The place of the next item that the context has as it is: of a hosted call it has the call and its output."""
    while place < len(items) and isinstance(items[place], Hosted) and not _is_same(items[place], one):
        place += 1
    return place


def _outputs_first(items: list[tuple[int, Item]], answers: Answers) -> list[tuple[Item, int | None]]:
    """What follows on the context: outputs of its open calls, in their order, and then all else."""
    given = {answer_key(item): place for place, item in items if isinstance(item, Answer)}
    by_place = dict(items)
    outputs: list[tuple[Item, int | None]] = []
    for key, entry in answers.open.items():
        if entry.is_hosted and entry.output:
            outputs.append((entry.output, None))
        elif not entry.is_hosted and key in given:
            outputs.append((by_place.pop(given[key]), given[key]))
    return [*outputs, *((item, place) for place, item in by_place.items() if not _is_echo(item, answers))]


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
