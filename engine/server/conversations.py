"""Conversations over HTTP.

POST               /v1/conversations                     a new one, {items?, metadata?}
GET, POST, DELETE  /v1/conversations/{id}                the conversation; POST sets its metadata
GET, POST          /v1/conversations/{id}/items          its items, page by page; POST adds up to 20
GET, DELETE        /v1/conversations/{id}/items/{item}   one of them
"""

from typing import Annotated, Any, Final

import msgspec

from engine.conversations import Conversations
from engine.errors import RequestError
from engine.items import CompactionTrigger, Item, ItemReference, decode_items
from engine.json_input import check_depth, decode_json
from engine.parameters import Metadata
from engine.server.access import principal
from engine.server.contents import PageQuery
from engine.server.exchange import Answer, Request, json_answer
from engine.server.query import read_query
from engine.server.routes import Row
from engine.settings import Settings

_ALL: Final = "/v1/conversations"
_ONE: Final = f"{_ALL}/{{id}}"
_ITEMS: Final = f"{_ONE}/items"
_ITEM: Final = f"{_ITEMS}/{{item}}"


class _New(msgspec.Struct, frozen=True):
    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=20)] | None = None
    metadata: Metadata | None = None


class _Change(msgspec.Struct, frozen=True):
    metadata: Metadata


class _More(msgspec.Struct, frozen=True):
    items: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=20)]


_NEW: Final = msgspec.json.Decoder(_New)
_CHANGE: Final = msgspec.json.Decoder(_Change)
_MORE: Final = msgspec.json.Decoder(_More)


class ConversationRoutes:
    """What answers requests for conversations."""

    def __init__(self, conversations: Conversations, settings: Settings) -> None:
        self._conversations = conversations
        self._settings = settings

    def rows(self) -> list[Row]:
        """Methods, URLs, and what answers them."""
        return [
            ("POST", _ALL, self._create),
            ("GET", _ONE, self._get),
            ("POST", _ONE, self._update),
            ("DELETE", _ONE, self._delete),
            ("GET", _ITEMS, self._list),
            ("POST", _ITEMS, self._add),
            ("GET", _ITEM, self._get_item),
            ("DELETE", _ITEM, self._delete_item),
        ]

    async def _create(self, request: Request) -> Answer:
        body: _New = await self._body(request, _NEW, default=b"{}")
        items = _read_items(body.items or [])
        return json_answer(await self._conversations.create(principal(request.head), body.metadata or {}, items))

    async def _get(self, request: Request) -> Answer:
        return json_answer(await self._conversations.get(*_named(request)))

    async def _update(self, request: Request) -> Answer:
        body: _Change = await self._body(request, _CHANGE)
        return json_answer(await self._conversations.update(*_named(request), body.metadata))

    async def _delete(self, request: Request) -> Answer:
        await self._conversations.delete(*_named(request))
        return json_answer({"id": request.params["id"], "object": "conversation.deleted", "deleted": True})

    async def _list(self, request: Request) -> Answer:
        query = read_query(request.head, PageQuery)
        page = self._conversations.list_items(*_named(request), limit=query.limit, order=query.order, after=query.after)
        return json_answer(await page)

    async def _add(self, request: Request) -> Answer:
        body: _More = await self._body(request, _MORE)
        return json_answer(await self._conversations.add(*_named(request), _read_items(body.items)))

    async def _get_item(self, request: Request) -> Answer:
        return json_answer(await self._conversations.get_item(*_named(request), request.params["item"]))

    async def _delete_item(self, request: Request) -> Answer:
        return json_answer(await self._conversations.delete_item(*_named(request), request.params["item"]))

    async def _body(self, request: Request, decoder: msgspec.json.Decoder[Any], default: bytes = b"") -> Any:
        data = await request.read_body() or default
        check_depth(data, self._settings.max_json_depth)
        return decode_json(data, decoder, self._settings.max_json_depth)


def _named(request: Request) -> tuple[str, str]:
    """The conversation's id and who asks for it."""
    return request.params["id"], principal(request.head)


def _read_items(raws: list[msgspec.Raw]) -> list[Item]:
    items = decode_items(raws, param="items")
    for index, item in enumerate(items):
        if isinstance(item, ItemReference | CompactionTrigger):
            message = "Only an item itself can be in a conversation."
            raise RequestError(message, param=f"items[{index}]", code="unsupported_item")
    return items
