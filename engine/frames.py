"""What a client may send: one struct per frame type, decoded strictly where it matters and leniently elsewhere.

Unknown fields are ignored. `null` is accepted wherever a field is optional. Wrong types, missing fields and values out
of range raise a RequestError that names the field by its JSON path.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from engine.backends.base import ToolChoice
from engine.errors import RequestError
from engine.items import invalid_json
from engine.toolspec import Tool

Input = str | list[msgspec.Raw]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
# JSON knows integers of any size; what goes on to a worker or an index has 64 bits, and JavaScript's exact ones 53.
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class Create(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """`response.create`: start a run."""

    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: msgspec.Raw = msgspec.Raw(b"null")
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    seed: Natural | None = None
    reasoning: Reasoning | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    generate: bool | None = None
    keep_open: bool | None = None
    resumable: bool | None = None
    stream_id: str | None = None


class Append(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.append"):
    """`response.append`: tool outputs and messages for the open run of a lane."""

    input: Input
    tool_choice: msgspec.Raw = msgspec.Raw(b"null")
    response_id: str | None = None
    stream_id: str | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.cancel"):
    """`response.cancel`: end the open run of a lane."""

    response_id: str | None = None
    stream_id: str | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.resume"):
    """`response.resume`: read a run from `starting_after` (exclusive, -1 for all) on this connection and lane."""

    response_id: str
    starting_after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    stream_id: str | None = None


class Processed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.processed"):
    """`response.processed`: an acknowledgement that some Codex releases send; it means nothing here."""

    stream_id: str | None = None


ClientFrame = Create | Append | Cancel | Resume | Processed


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
    "response.cancel": msgspec.json.Decoder(Cancel),
    "response.resume": msgspec.json.Decoder(Resume),
    "response.processed": msgspec.json.Decoder(Processed),
}
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


class FrameError(RequestError):
    """A frame that cannot be read; `stream_id` is its lane, as far as that could be."""


def decode_frame(data: bytes, *, max_depth: int) -> ClientFrame:
    """The client frame in `data` (UTF-8 JSON). Raises FrameError, which knows the lane to answer on."""
    stream_id: str | None = None
    try:
        _check_depth(data, max_depth)
        head = _HEAD.decode(data)
        stream_id = _check_stream_id(head.stream_id)
        kind = head.type if isinstance(head.type, str) else _TYPED.decode(data).type
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise RequestError(f"Unknown event type '{kind}'.", param="type", code="unknown_event_type")
        frame: ClientFrame = decoder.decode(data)
        return frame
    except RequestError as error:
        raise _on_lane(error, stream_id) from error
    except RecursionError as error:
        raise _on_lane(_too_deep(max_depth), stream_id) from error
    except UnicodeDecodeError as error:
        raise _on_lane(RequestError("The frame is not valid UTF-8.", code="invalid_json"), stream_id) from error
    except msgspec.DecodeError as error:
        raise _on_lane(invalid_json(error), stream_id) from error


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


def _check_depth(data: bytes, max_depth: int) -> None:
    """Refuse JSON nested deeper than `max_depth`, before any parser recurses into it.

    Few brackets cannot nest deep, so most frames cost two counts; the others one pass at some 100 MB/s.
    """
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > max_depth:
            raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> RequestError:
    return RequestError(f"The frame is nested deeper than {max_depth} levels.", code="json_too_deep")


# --- tool_choice -------------------------------------------------------------------------------------------------


class _NamedChoice(msgspec.Struct):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]] = []


_CHOICE: Final = msgspec.json.Decoder(Literal["none", "auto", "required"] | _NamedChoice | None)


def decode_tool_choice(raw: msgspec.Raw, tools: list[Tool]) -> ToolChoice:
    """The step's tool choice; absent and null mean auto. Raises RequestError naming `tool_choice…`."""
    try:
        choice = _CHOICE.decode(raw)
    except msgspec.DecodeError as error:
        raise invalid_json(error).at("tool_choice") from error
    if not isinstance(choice, _NamedChoice):
        if choice == "required" and not tools:
            raise RequestError("'required' needs at least one tool.", param="tool_choice")
        return ToolChoice(choice or "auto")
    if choice.type == "allowed_tools":
        names = frozenset(_known(entry, tools, f"tool_choice.tools[{i}]") for i, entry in enumerate(choice.tools))
        if choice.mode == "required" and not names:
            raise RequestError("'required' needs at least one tool.", param="tool_choice.tools")
        return ToolChoice(choice.mode, names)
    name = _known({"type": choice.type, "name": choice.name}, tools, "tool_choice")
    return ToolChoice("required", frozenset({name}), is_named=True)


def _known(entry: dict[str, Any], tools: list[Tool], param: str) -> str:
    """The name of the offered tool that an entry means: by name, or by kind for tools that have none."""
    name = entry.get("name") or entry.get("type")
    if name == "computer_use_preview":
        name = "computer"
    for tool in tools:
        if tool.name == name:
            return tool.name
    raise RequestError(f"Tool '{name}' is not among the tools of this response.", param=f"{param}.name")
