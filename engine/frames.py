"""What a client may send over a socket: one struct per frame type, decoded as parameters.py says."""

import re
from typing import Annotated, Any, Final

import msgspec

from engine.errors import RequestError
from engine.json_input import check_depth, decode_json
from engine.parameters import Input, Parameters


class MultiAgent(msgspec.Struct, frozen=True):
    """The beta that the inject lifecycle comes from; here a run has one agent."""

    enabled: bool = False


class Create(Parameters, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """`response.create`: start a run. `keep_open` and `resumable` are extensions of ours."""

    generate: bool | None = None
    keep_open: bool | None = None
    resumable: bool | None = None
    multi_agent: MultiAgent | None = None
    stream_id: str | None = None


class Append(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.append"):
    """`response.append`: tool outputs and messages for the open run of a lane."""

    input: Input
    tool_choice: msgspec.Raw = msgspec.Raw(b"null")
    response_id: str | None = None
    stream_id: str | None = None


class Inject(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.inject"):
    """`response.inject`: what `response.append` is, under the beta's name and with the run's id."""

    response_id: str
    input: Input
    stream_id: str | None = None


class Steer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """`response.steer`: what the user says while a response of a chain is sampled."""

    previous_response_id: str
    input: Input
    stream_id: str | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.cancel"):
    """`response.cancel`: end the open run of a lane."""

    response_id: str | None = None
    stream_id: str | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.resume"):
    """`response.resume`: read a run from `starting_after` (exclusive, -1 for all) on this connection and lane.

    revival: the last one that the client was told of.
    """

    response_id: str
    starting_after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] | None = None
    revival: str | None = None
    stream_id: str | None = None

    @property
    def last_seen(self) -> int:
        """The last event that the client has, -1 for none."""
        return -1 if self.starting_after is None else self.starting_after


class Processed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.processed"):
    """`response.processed`: an acknowledgement that some Codex releases send; it means nothing here."""

    stream_id: str | None = None


ClientFrame = Create | Append | Inject | Steer | Cancel | Resume | Processed


class _Head(msgspec.Struct):
    type: Any = None
    stream_id: Any = None


class _Typed(msgspec.Struct):
    type: str


_HEAD: Final = msgspec.json.Decoder(_Head)
_TYPED: Final = msgspec.json.Decoder(_Typed)
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "response.create": msgspec.json.Decoder(Create),
    "response.append": msgspec.json.Decoder(Append),
    "response.inject": msgspec.json.Decoder(Inject),
    "response.steer": msgspec.json.Decoder(Steer),
    "response.cancel": msgspec.json.Decoder(Cancel),
    "response.resume": msgspec.json.Decoder(Resume),
    "response.processed": msgspec.json.Decoder(Processed),
}
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


class FrameError(RequestError):
    """A frame that cannot be read; `stream_id` is its lane, as far as that could be."""


def decode_frame(data: bytes, *, max_depth: int) -> ClientFrame:
    """The client frame in `data` (UTF-8 JSON). Raises FrameError, which knows the lane to answer on."""
    stream_id: str | None = None
    try:
        check_depth(data, max_depth)
        head = decode_json(data, _HEAD, max_depth)
        stream_id = _check_stream_id(head.stream_id)
        kind = head.type if isinstance(head.type, str) else decode_json(data, _TYPED, max_depth).type
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise RequestError(f"Unknown event type '{kind}'.", param="type", code="unknown_event_type")
        frame: ClientFrame = decode_json(data, decoder, max_depth)
        return frame
    except RequestError as error:
        raise _on_lane(error, stream_id) from error


def _on_lane(error: RequestError, stream_id: str | None) -> FrameError:
    """The error as one of a frame of this lane."""
    frame_error = FrameError(error.message, param=error.param, code=error.code, status=error.status)
    frame_error.stream_id = stream_id
    return frame_error


def _check_stream_id(stream_id: Any) -> str | None:
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not _STREAM_ID.match(stream_id):
        raise RequestError(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain "
            "letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return stream_id
