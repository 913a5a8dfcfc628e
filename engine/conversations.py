"""Conversations: items that a response is given before its own input, and that grow by what it was given and made.

They are kept in the store alone. While a response works on a conversation nobody else may change it, or the next
response would be given an order of things that no model has seen.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

import msgspec

from engine.answers import no_call_found
from engine.clock import wall_clock
from engine.errors import NotFound, RequestError
from engine.ids import mint_id
from engine.items import Answer, Call, Item, answer_key, call_key, decode_item, encode_item, item_id
from engine.listing import ItemList, Order, as_listed, item_prefix, list_page
from engine.parameters import Metadata
from engine.resolving import open_items
from engine.response import Response
from engine.sealing import Sealer
from engine.store import Conversation, Store, StoredItem

T = TypeVar("T")
_AT_ONCE: Final = 1000  # items in one answer of the store
_MAX_KNOWN: Final = 10_000  # conversations of which the newest response is known: 2 MB
_METADATA: Final = msgspec.json.Decoder(dict[str, str])


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation as clients read it."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class Conversations:
    """All conversations of a server. An id that belongs to another principal is not found."""

    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer
        self._in_use: set[str] = set()
        # The response whose context is a conversation, item for item: the next one goes on from it. It need not; so
        # what is forgotten at a restart costs one rendering of the whole.
        self._newest: OrderedDict[str, str] = OrderedDict()

    # --- what clients do with them ---

    async def create(self, principal: str, metadata: Metadata, items: Sequence[Item]) -> ConversationObject:
        """A new conversation that begins with these items, once it is on disk. Raises RequestError, ServerError."""
        self._check(items, [])
        conversation = Conversation(mint_id("conv"), int(wall_clock()), msgspec.json.encode(metadata))
        self._store.put_conversation(principal, conversation)
        self._put(conversation.id, items)
        await self._store.wait_durable()
        return _object(conversation)

    async def get(self, conversation_id: str, principal: str) -> ConversationObject:
        """Raises NotFound."""
        return _object(_found(await self._store.get_conversation(conversation_id, principal), conversation_id))

    async def update(self, conversation_id: str, principal: str, metadata: Metadata) -> ConversationObject:
        """Set its metadata. Raises NotFound."""
        encoded = msgspec.json.encode(metadata)
        return _object(
            _found(await self._store.update_conversation(conversation_id, principal, encoded), conversation_id)
        )

    async def delete(self, conversation_id: str, principal: str) -> None:
        """Forget it and its items. Raises NotFound."""
        if not await self._store.delete_conversation(conversation_id, principal):
            raise _not_found(conversation_id)
        self._newest.pop(conversation_id, None)

    async def add(self, conversation_id: str, principal: str, items: Sequence[Item]) -> ItemList:
        """Add items at the end; the list of them, once they are on disk.

        Raises NotFound, ServerError, RequestError: `conversation_locked`, or with a path from `items` on.
        """
        earlier = await self.items(conversation_id, principal)
        self._expect_free(conversation_id)
        self._check(items, earlier)
        added = self._put(conversation_id, items)
        self._newest.pop(conversation_id, None)
        await self._store.wait_durable()
        return list_page([msgspec.Raw(one.item) for one in added], [one.id for one in added], has_more=False)

    async def list_items(
        self, conversation_id: str, principal: str, *, limit: int, order: Order, after: str | None
    ) -> ItemList:
        """A page of its items. Raises NotFound."""
        page = await self._store.list_items(conversation_id, principal, limit=limit, order=order, after=after)
        found = _found(page, conversation_id)
        ids = [one.id for one in found.items]
        return list_page([msgspec.Raw(one.item) for one in found.items], ids, has_more=found.has_more)

    async def get_item(self, conversation_id: str, principal: str, own_id: str) -> msgspec.Raw:
        """One item. Raises NotFound."""
        await self.get(conversation_id, principal)
        item = await self._store.get_item(conversation_id, principal, own_id)
        if item is None:
            raise _item_not_found(own_id)
        return msgspec.Raw(item.item)

    async def delete_item(self, conversation_id: str, principal: str, own_id: str) -> ConversationObject:
        """Forget one item; the conversation. Raises NotFound, RequestError `conversation_locked`."""
        conversation = await self.get(conversation_id, principal)
        self._expect_free(conversation_id)
        if not await self._store.delete_item(conversation_id, principal, own_id):
            raise _item_not_found(own_id)
        self._newest.pop(conversation_id, None)
        return conversation

    # --- what responses do with them ---

    async def enter(self, conversation_id: str, principal: str) -> str | None:
        """Keep others from changing it, until `leave`. The response whose context is all of it, where one is known.

        Raises NotFound, RequestError `conversation_locked`.
        """
        await self.get(conversation_id, principal)
        self._expect_free(conversation_id)
        self._in_use.add(conversation_id)
        return self._newest.get(conversation_id)

    def leave(self, conversation_id: str, given: Sequence[Item] = (), response: Response | None = None) -> None:
        """The response is over. Its input and output are added if it came to an end of its own."""
        self._in_use.discard(conversation_id)
        if response is None or not (response.can_go_on and response.ended_by_itself):
            return
        # Nobody could answer half a call.
        made = [item for item in response.output if not (isinstance(item, Call) and _is_cut(item))]
        if made or response.request.generate:
            self._put(conversation_id, [*given, *made])
            if len(made) == len(response.output):
                self._newest[conversation_id] = response.id
                self._newest.move_to_end(conversation_id)
                if len(self._newest) > _MAX_KNOWN:
                    self._newest.popitem(last=False)

    async def items(self, conversation_id: str, principal: str) -> list[Item]:
        """All its items, in order. Raises NotFound."""
        items: list[Item] = []
        after, has_more = None, True
        while has_more:
            page = await self._store.list_items(conversation_id, principal, limit=_AT_ONCE, order="asc", after=after)
            found = _found(page, conversation_id)
            items += [decode_item(one.item) for one in found.items]
            has_more = found.has_more
            after = found.items[-1].id if found.items else None
        return items

    def _check(self, items: Sequence[Item], earlier: Sequence[Item]) -> None:
        """Refuse what no response could begin with; a call without an output may still get one."""
        ids = {own for item in earlier if (own := item_id(item))}
        calls = {call_key(item) for item in earlier if isinstance(item, Call)}
        for index, item in enumerate(items):
            if (own := item_id(item)) in ids:
                message = f"The conversation has an item with the id '{own}' already."
                raise RequestError(message, param=f"items[{index}].id", code="duplicate_item")
            if own:
                ids.add(own)
            if isinstance(item, Call):
                calls.add(call_key(item))
            if isinstance(item, Answer) and answer_key(item) not in calls:
                raise no_call_found(answer_key(item), item).at(f"items[{index}]")
        try:
            open_items(items, self._sealer)
        except RequestError as error:
            raise error.at("items") from error

    def _expect_free(self, conversation_id: str) -> None:
        if conversation_id in self._in_use:
            raise RequestError(
                "Another process is currently operating on this conversation. Please retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )

    def _put(self, conversation_id: str, items: Sequence[Item]) -> list[StoredItem]:
        whole = [as_listed(item, item_id(item) or mint_id(item_prefix(item))) for item in items]
        stored = [StoredItem(item_id(item) or "", encode_item(item)) for item in whole]
        self._store.put_items(conversation_id, stored)
        return stored


def _is_cut(item: Call) -> bool:
    """Whether the model was stopped in the middle of it."""
    return getattr(item, "status", "completed") != "completed"


_PLACE: Final = re.compile(r"input\[(\d+)\](.*)")


@contextmanager
def telling_own_input(num_earlier: int) -> Iterator[None]:
    """Around what takes a conversation's items and then a request's: errors name the place in the request's input."""
    try:
        yield
    except RequestError as error:
        if found := _PLACE.fullmatch(error.param or ""):
            index = int(found[1]) - num_earlier
            error.param = "conversation" if index < 0 else f"input[{index}]{found[2]}"
        raise


def _object(conversation: Conversation) -> ConversationObject:
    metadata = _METADATA.decode(conversation.metadata)
    return ConversationObject(id=conversation.id, created_at=conversation.created_at, metadata=metadata)


def _found(value: T | None, conversation_id: str) -> T:
    if value is None:
        raise _not_found(conversation_id)
    return value


def _not_found(conversation_id: str) -> NotFound:
    return NotFound(
        f"Conversation with id '{conversation_id}' not found.", param="conversation", code="conversation_not_found"
    )


def _item_not_found(own_id: str) -> NotFound:
    return NotFound(f"Item with id '{own_id}' not found.", param="item_id", code="item_not_found")
