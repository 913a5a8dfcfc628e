"""Reads what a request says of a built-in tool, and what a model wrote to call it, into structs."""

from typing import TypeVar

import msgspec

from engine.hosted.base import Definition, HostedCall
from engine.json_input import invalid_json
from engine.toolcall import InvalidArguments

T = TypeVar("T")


def read_fields(definition: Definition, kind: type[T]) -> T:
    """The definition's fields. Raises RequestError with a path inside it."""
    try:
        return msgspec.convert(definition.fields, kind)
    except msgspec.ValidationError as error:
        raise invalid_json(error) from error


def read_arguments(call: HostedCall, kind: type[T]) -> T:
    """The call's arguments. Raises InvalidArguments, which the model is told."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=kind)
    except RecursionError as error:
        raise InvalidArguments(f"The arguments of {call.tool.name} are nested too deep.") from error
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"The arguments of {call.tool.name} do not fit: {error}.") from error
