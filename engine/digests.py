"""What makes two items the same, in sixteen bytes."""

from hashlib import blake2b
from typing import Final

import msgspec

from engine.growing import Streamable
from engine.items import Answer, ApplyPatchCallOutput, Hosted, Item, encode_item

_BYTES: Final = 16


def same_answer(one: Answer, other: Answer) -> bool:
    """Whether two answers say the same."""
    return digest_answer(one) == digest_answer(other)


def digest_answer(answer: Answer) -> bytes:
    """What makes two answers the same: everything but their own id and, where it says nothing, their status."""
    bare = msgspec.structs.replace(answer, id=msgspec.UNSET)
    if not isinstance(answer, ApplyPatchCallOutput) and "status" in bare.__struct_fields__:
        bare = msgspec.structs.replace(bare, status=msgspec.UNSET)
    if isinstance(bare, Streamable):
        bare = msgspec.structs.replace(bare, offset=msgspec.UNSET)
    return digest_item(bare)


def digest_item(item: Item) -> bytes:
    """What makes two items the same: everything."""
    return blake2b(encode_item(item), digest_size=_BYTES).digest()


def digest_hosted(item: Hosted) -> bytes:
    """What makes two hosted items the same when one of them has no id."""
    data = {name: value for name, value in item.data.items() if name not in ("id", "status")}
    return blake2b(msgspec.json.encode(data, order="sorted"), digest_size=_BYTES).digest()


def digest_text(text: str) -> bytes:
    """What makes two texts the same."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()
