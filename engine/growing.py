"""Outputs that come in parts, while their tool still runs: `status: "in_progress"`, `offset` in characters.

A part that was seen is skipped up to what is new; a gap is refused with the offset that is due.
"""

import msgspec

from engine.errors import RequestError
from engine.items import Answer, CustomToolCallOutput, FunctionCallOutput

Streamable = FunctionCallOutput | CustomToolCallOutput


def is_part(answer: Answer) -> bool:
    """Whether it is a part of an output and not the whole."""
    return isinstance(answer, Streamable) and (answer.offset is not msgspec.UNSET or answer.status == "in_progress")


def is_last_from_start(answer: Answer) -> bool:
    """Whether it is an output's last part, and its first."""
    return isinstance(answer, Streamable) and answer.status != "in_progress" and not offset_of(answer)


def offset_of(part: Streamable) -> int:
    """Where it begins, in characters of the output."""
    return part.offset or 0


def join(text: str, part: Streamable) -> str:
    """The text with the part put at its offset. Raises RequestError for a gap or for another text than was there."""
    assert isinstance(part.output, str)
    start = offset_of(part)
    if not 0 <= start <= len(text):
        raise RequestError(f"The output so far has {len(text)} characters; the next part starts there.", param="offset")
    known = text[start:]
    if part.output.startswith(known):
        return text + part.output[len(known) :]
    is_resend = known.startswith(part.output) and part.status == "in_progress"
    if is_resend:
        return text
    raise RequestError("The part differs from what was sent before at the same offset.", param="output")
