"""Text that UTF-8 can say: a str may hold half a surrogate pair, which no frame, hash or database takes.

It comes from file names (`os.fsdecode`), from codecs, and from tools that slice UTF-16. JSON that is decoded here
cannot bring it: msgspec refuses it.
"""

from typing import Any


def encodable(text: str) -> str:
    """The text, with what UTF-8 cannot say replaced one to one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def encodable_value(value: Any) -> Any:
    """The same of every text in a value that is to become JSON."""
    match value:
        case str():
            return encodable(value)
        case list():
            return [encodable_value(one) for one in value]
        case dict():
            return {encodable_value(name): encodable_value(one) for name, one in value.items()}
        case _:
            return value
