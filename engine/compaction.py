"""Making a context that has grown too long short again: the model sums it up, and goes on from that.

What is left of the context is its *window*: what the user said, newest first as far as there is room, and the summary.
The window is told to the client as one sealed item, which stands for everything before it.
"""

from collections.abc import Sequence as ListOf
from typing import Final, NamedTuple

from engine.backends.base import Extension, Sequence, StepEnd, StepSpec, TextDelta
from engine.content import text_of
from engine.errors import RequestError
from engine.items import Item, Message
from engine.usage import Timing, Usage

_REQUEST: Final = Message(
    role="developer",
    content="Sum up the conversation so far for whoever goes on with it, without answering it: what the user wants, "
    "what was found out and done, in which order, with every name, number and result that still matters, and what "
    "remains to be done. Write plain sentences.",
)
_HEADING: Final = "Summary of the conversation before this point:\n"


class Summary(NamedTuple):
    """The model's text, and what it took."""

    text: str
    usage: Usage
    timing: Timing


async def summarise(sequence: Sequence, response_id: str, max_tokens: int) -> Summary:
    """Let the model sum up a sequence at rest, on a copy of it; the sequence itself stays as it is.

    Raises BackendError, and RequestError when not even one token more fits the context.
    """
    twin = sequence.fork(response_id)
    try:
        if request := await _prepare_request(twin):
            twin.commit(request)
        twin.start_step(StepSpec(max_tokens=max_tokens, is_summary=True))
        pieces: list[str] = []
        while True:
            for delta in await twin.next_deltas():
                if isinstance(delta, TextDelta):
                    pieces.append(delta.text)
                elif isinstance(delta, StepEnd):
                    return Summary("".join(pieces), delta.usage, delta.timing)
    finally:
        twin.close()


async def _prepare_request(twin: Sequence) -> Extension | None:
    try:
        return await twin.prepare([_REQUEST])
    except RequestError as error:
        if error.code != "context_length_exceeded":
            raise
        return None  # the summary itself may still fit


def window_of(items: ListOf[Item], summary: str, max_chars: int) -> list[Item]:
    """What is left of a context: its newest user messages, up to `max_chars` but always the last, and the summary."""
    kept: list[Item] = []
    room = max_chars
    for item in reversed(items):
        if not (isinstance(item, Message) and item.role == "user"):
            continue
        room -= len(text_of(item.content))
        if kept and room < 0:
            break
        kept.append(item)
    kept.reverse()
    return [*kept, Message(role="developer", content=_HEADING + summary)]
