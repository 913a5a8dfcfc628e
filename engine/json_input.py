"""JSON that a client sent: how deep it may be, and what is wrong with it, as errors that name the field."""

import re
from typing import Any, Final

import msgspec

from engine.errors import RequestError

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


def check_depth(data: bytes, max_depth: int) -> None:
    """Refuse JSON nested deeper than `max_depth`, before any parser recurses into it.

    Few brackets cannot nest deep, so most input costs two counts; the rest one pass at some 100 MB/s.
    """
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > max_depth:
            raise _too_deep(max_depth)


def decode_json(data: bytes, decoder: msgspec.json.Decoder[Any], max_depth: int) -> Any:
    """What `decoder` makes of the data, whose depth was checked. Raises RequestError, whatever is wrong with it."""
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except UnicodeDecodeError as error:
        raise RequestError("The JSON is not valid UTF-8.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        if _has_half_pair(data) and not isinstance(error, msgspec.ValidationError):
            # msgspec looks for the other half and takes what it finds for the end of the input.
            raise RequestError("A string holds half of a surrogate pair.", code="invalid_json") from error
        raise invalid_json(error) from error


def _has_half_pair(data: bytes) -> bool:
    """Whether some `\\uD800`…`\\uDFFF` stands alone."""
    halves = _PAIR.sub(b"", data.replace(b"\\\\", b""))
    return _HALF.search(halves) is not None


def _too_deep(max_depth: int) -> RequestError:
    return RequestError(f"The JSON is nested deeper than {max_depth} levels.", code="json_too_deep")


def invalid_json(error: msgspec.DecodeError) -> RequestError:
    """A decoding error as ours: msgspec writes `message - at `$.a[0].b``, which becomes message and param.

    For a wrong key it writes `message - at `key` in `$.a``: the object is named, since keys are no JSON path.
    """
    message, _, path = str(error).partition(" - at `")
    path = path.removeprefix("key` in `")
    param = path.rstrip("`").removeprefix("$").removeprefix(".").removeprefix("[...]") or None
    if not isinstance(error, msgspec.ValidationError):
        code = "invalid_json"
    elif "missing required field" in message:
        field = message.split("`")[1]
        param, code = f"{param}.{field}" if param else field, "missing_required_parameter"
    else:  # of the wrong type, or of the right one and out of range or not among the choices
        code = "invalid_type" if ", got `" in message else "invalid_value"
    return RequestError(message.rstrip(".") + ".", param=param, code=code)
