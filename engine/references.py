"""Items that a client names by their ids instead of sending them again (`item_reference`).

The id of an item says which response made it, so that one is read, from memory or the store.
"""

from collections.abc import Awaitable, Callable, Sequence

from engine.errors import NotFound
from engine.ids import maker_of
from engine.items import Item, ItemReference, item_id
from engine.resolving import look_up_items
from engine.response import Response

ReadResponse = Callable[[str], Awaitable[Response]]


async def resolve(items: Sequence[Item], read: ReadResponse) -> list[Item]:
    """The items with each reference replaced by what it names. `read` raises NotFound.

    Raises NotFound with a path from `input` on for a reference that leads nowhere.
    """
    makers = {maker for item in items if isinstance(item, ItemReference) and (maker := maker_of(item.id))}
    found: dict[str, Item] = {}
    for maker in sorted(makers):
        found |= await _output_of(maker, read)
    return look_up_items(items, found.get)


async def _output_of(response_id: str, read: ReadResponse) -> dict[str, Item]:
    try:
        response = await read(response_id)
    except NotFound:
        return {}
    return {item_id(item) or "": item for item in response.output}
