"""What the server keeps beyond its own life: stored responses and conversations.

The seam to it, and the values that cross it. What a response or an item *is* nobody here knows: blobs go in and come
out as they were (journal.py writes and reads those of responses). An id is only valid for the principal that it was
put in for; for another one it does not exist.

`put_*` never wait and never fail: they are visible to whatever is asked afterwards, and reach the disk a little later.
What could not be written is lost: the log says so, who asks for it gets a ServerError, and the run goes on meanwhile.
Everything else waits for its answer and raises ServerError when the store fails.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from engine.errors import ServerError

Order = Literal["asc", "desc"]


class StoreUnusable(ServerError):
    """The store cannot be opened; the message says what to do about it."""

    code = "store_unusable"


class Stored(msgspec.Struct, frozen=True):
    """A response's records: how it began, and each of its steps in order, as far as they were written."""

    id: str
    parent: str | None
    created_at: int
    start: bytes
    steps: list[bytes]


class Conversation(msgspec.Struct, frozen=True):
    """A conversation without its items; `metadata` is JSON."""

    id: str
    created_at: int
    metadata: bytes


class StoredItem(msgspec.Struct, frozen=True):
    """An item of a conversation; `item` is its JSON."""

    id: str
    item: bytes


class Page(msgspec.Struct, frozen=True):
    """A part of a conversation's items, and whether more follow in the same direction."""

    items: list[StoredItem]
    has_more: bool


class Store(Protocol):
    """See the module. Times are whole seconds since the epoch."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be kept now; None as far as all is well. Goes away when that works again."""

    # --- responses ---

    def put_start(self, response_id: str, principal: str, parent: str | None, created_at: int, start: bytes) -> None:
        """Keep a new response. It is kept for as long as those are that go on from it (`parent`)."""

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        """Keep a response's next step, numbered from 0. Dropped when the response or the step before is not there."""

    async def load(self, response_id: str, principal: str) -> Stored | None:
        """A response's records; None when there is no such response."""

    async def load_chain(self, response_id: str, principal: str) -> list[Stored]:
        """A response and all that it goes on from, oldest first, as far as they are there; empty when it is not."""

    async def delete(self, response_id: str, principal: str) -> bool:
        """Forget a response, for good. False when there is none."""

    async def wait_durable(self) -> None:
        """Wait until all that was put so far is on disk, or lost."""

    # --- conversations: kept until they are deleted ---

    def put_conversation(self, principal: str, conversation: Conversation) -> None:
        """Keep a new conversation, without items."""

    def put_items(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        """Add items at the end, but for those whose id is there. Dropped when the conversation is not there."""

    async def get_conversation(self, conversation_id: str, principal: str) -> Conversation | None:
        """The conversation; None when there is none."""

    async def update_conversation(self, conversation_id: str, principal: str, metadata: bytes) -> Conversation | None:
        """The conversation with this metadata from now on; None when there is none."""

    async def delete_conversation(self, conversation_id: str, principal: str) -> bool:
        """Forget a conversation and its items, for good. False when there is none."""

    async def list_items(
        self, conversation_id: str, principal: str, *, limit: int, order: Order, after: str | None = None
    ) -> Page | None:
        """Up to `limit` items, those behind the item `after` in this order; None when there is no such conversation.

        Raises NotFound when there is no item `after`.
        """

    async def get_item(self, conversation_id: str, principal: str, item_id: str) -> StoredItem | None:
        """One item; None when there is none."""

    async def delete_item(self, conversation_id: str, principal: str, item_id: str) -> bool:
        """Forget one item, for good. False when there is none."""
