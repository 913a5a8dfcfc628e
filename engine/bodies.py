"""What a client may POST: the bodies of HTTP requests for runs."""

from typing import Any, ClassVar, Final

import msgspec

from engine.json_input import check_depth, decode_json
from engine.parameters import Parameters


class CreateBody(Parameters, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`: the parameters, and whether the events are wanted as they come."""

    stream: bool | None = None
    # What only a socket has; a client that sends it expects something that will not happen.
    type: Any = None
    generate: Any = None
    stream_id: Any = None
    keep_open: Any = None
    resumable: Any = None

    refused: ClassVar[tuple[str, ...]] = (
        *Parameters.refused, "type", "generate", "stream_id", "keep_open", "resumable",
    )  # fmt: skip


_CREATE: Final = msgspec.json.Decoder(CreateBody)


def decode_create_body(data: bytes, *, max_depth: int) -> CreateBody:
    """The body in `data` (UTF-8 JSON). Raises RequestError naming the field."""
    check_depth(data, max_depth)
    body: CreateBody = decode_json(data, _CREATE, max_depth)
    return body
