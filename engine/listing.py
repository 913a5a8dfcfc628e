"""Items as the API lists them: each with an id and a status, messages in parts, page by page."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from engine.calls import PREFIXES
from engine.content import InputText, OutputText
from engine.errors import NotFound
from engine.items import Hosted, Item, Message, encode_item, item_id, type_of

Order = Literal["asc", "desc"]

_PREFIXES: Final = PREFIXES | {
    "message": "msg",
    "reasoning": "rs",
    "compaction": "cmp",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "local_shell_call_output": "lsho",
    "shell_call_output": "sho",
    "apply_patch_call_output": "apco",
    "computer_call_output": "cuo",
    "tool_search_output": "tso",
    "mcp_approval_response": "mcpa",
}


class ItemList(msgspec.Struct, kw_only=True):
    """A page of items, and whether there are more behind it."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def item_prefix(item: Item) -> str:
    """What the ids of such items begin with."""
    return _PREFIXES.get(type_of(item), "item")


def listed(items: Iterable[Item]) -> list[Item]:
    """A context's items, in order, as they are listed.

    Clients need not give their items ids. One that has none is named by what it is and where it stands, which is the
    same in each response that goes on from there, and at any time.
    """
    return [as_listed(item, item_id(item) or _derived_id(item, index)) for index, item in enumerate(items)]


def as_listed(item: Item, own_id: str) -> Item:
    """The item under this id, with everything that readers look for."""
    if isinstance(item, Hosted):
        return Hosted(item.type, item.data | {"id": own_id})
    changes: dict[str, Any] = {"id": own_id}
    if getattr(item, "status", None) is msgspec.UNSET:
        changes["status"] = "completed"
    if isinstance(item, Message) and isinstance(item.content, str):
        changes["content"] = [_part(item)]
    return msgspec.structs.replace(item, **changes)


def _part(message: Message) -> InputText | OutputText:
    assert isinstance(message.content, str)
    return (OutputText if message.role == "assistant" else InputText)(text=message.content)


def _derived_id(item: Item, index: int) -> str:
    digest = blake2b(b"%d %b" % (index, encode_item(item)), digest_size=12).hexdigest()
    return f"{item_prefix(item)}_{digest}"


def page_of(items: Sequence[Item], *, limit: int, order: Order, after: str | None) -> ItemList:
    """Up to `limit` items, those behind the item `after` in this order. Raises NotFound when there is no such item."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    ids = [item_id(item) or "" for item in ordered]
    start = 0
    if after is not None:
        if after not in ids:
            raise NotFound(f"Item with id '{after}' not found.", param="after", code="item_not_found")
        start = ids.index(after) + 1
    end = start + limit
    return list_page([msgspec.Raw(encode_item(item)) for item in ordered[start:end]], ids[start:end], end < len(ids))


def list_page(data: list[msgspec.Raw], ids: Sequence[str], has_more: bool) -> ItemList:
    """The page with these items."""
    return ItemList(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more)
