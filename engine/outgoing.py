"""Events and other frames as a reader gets them: encoded, under the names it knows, padded if it asked, on its lane.

The log knows nothing of all this, since one run can be read in several ways; what is added here costs a splice.
"""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from engine.events import Event, encode_event
from engine.item_events import ReasoningTextDelta, ReasoningTextDone
from engine.settings import EventNames

_ENCODER: Final = msgspec.json.Encoder()
_TYPE: Final = b'{"type":"'
_OPENAI: Final = _TYPE + b"response.reasoning_text."
_OPEN_RESPONSES: Final = _TYPE + b"response.reasoning."
_BLOCK: Final = 64  # bytes: with its field names a delta is some 180, so most tokens give frames of one length


class EventForm(msgspec.Struct, frozen=True):
    """How a reader wants events. Open Responses calls raw reasoning `response.reasoning.delta`, OpenAI `_text`."""

    names: EventNames = "openai"
    is_padded: bool = False

    def encode(self, event: Event) -> bytes:
        """The event's JSON."""
        data = encode_event(event)
        if self.names == "open_responses" and isinstance(event, ReasoningTextDelta | ReasoningTextDone):
            data = _OPEN_RESPONSES + data.removeprefix(_OPENAI)
        return _padded(data) if self.is_padded and hasattr(event, "delta") else data


def _padded(data: bytes) -> bytes:
    """The delta with an `obfuscation` that brings it to whole blocks, so that its length tells nothing of its text.

    The characters come from the data itself: a replay is the same to the byte, and no compression undoes them.
    """
    head = data[:-1] + b',"obfuscation":"'
    num_missing = -(len(head) + 2) % _BLOCK
    return head + blake2b(data, digest_size=_BLOCK // 2).hexdigest()[:num_missing].encode() + b'"}'


def type_of_event(data: bytes) -> str:
    """The `type` of an encoded event, which it begins with."""
    start = len(_TYPE)
    return data[start : data.index(b'"', start)].decode("ascii")


def encode_frame(frame: dict[str, Any]) -> bytes:
    """The JSON of a frame that is no event of a run: acknowledgements and errors."""
    return _ENCODER.encode(frame)


def with_lane(frame: bytes, stream_id: str | None) -> bytes:
    """The frame as it goes out on a lane: named lanes are echoed on every frame, the default lane never is."""
    if stream_id is None:
        return frame
    return frame[:-1] + b',"stream_id":' + _ENCODER.encode(stream_id) + b"}"
