"""The query of a URL as values of the right types."""

from typing import TypeVar

import msgspec

from engine.json_input import invalid_json
from engine.server.exchange import Head

T = TypeVar("T", bound=msgspec.Struct)


def read_query(head: Head, kind: type[T]) -> T:
    """The query's values by the fields of `kind`; names that it lacks are ignored.

    Raises RequestError naming the value that is wrong.
    """
    values = {name: found[0] if len(found) == 1 else found for name, found in head.query.items()}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_json(error) from error
