"""A store without a disk, for tests: keeps everything in dictionaries, and nothing beyond its own life."""

from collections.abc import Sequence

import msgspec

from engine.errors import NotFound
from engine.store import Conversation, Order, Page, Stored, StoredItem


class MemoryStore:
    """See Store."""

    def __init__(self) -> None:
        self._responses: dict[str, tuple[str, Stored]] = {}
        self._conversations: dict[str, tuple[str, Conversation, dict[str, StoredItem]]] = {}
        self.failure: str | None = None

    # --- responses ---

    def put_start(self, response_id: str, principal: str, parent: str | None, created_at: int, start: bytes) -> None:
        self._responses.setdefault(response_id, (principal, Stored(response_id, parent, created_at, start, [])))

    def put_step(self, response_id: str, number: int, step: bytes) -> None:
        _, stored = self._responses.get(response_id, ("", None))
        if stored is not None and number == len(stored.steps):
            stored.steps.append(step)

    async def load(self, response_id: str, principal: str) -> Stored | None:
        owner, stored = self._responses.get(response_id, (principal, None))
        if stored is None or owner != principal:
            return None
        return msgspec.structs.replace(stored, steps=[*stored.steps])

    async def load_chain(self, response_id: str, principal: str) -> list[Stored]:
        chain: list[Stored] = []
        following: str | None = response_id
        while following is not None and (stored := await self.load(following, principal)):
            chain.insert(0, stored)
            following = stored.parent
        return chain

    async def delete(self, response_id: str, principal: str) -> bool:
        is_there = await self.load(response_id, principal) is not None
        if is_there:
            del self._responses[response_id]
        return is_there

    async def wait_durable(self) -> None:
        """There is no disk to wait for."""

    # --- conversations ---

    def put_conversation(self, principal: str, conversation: Conversation) -> None:
        self._conversations.setdefault(conversation.id, (principal, conversation, {}))

    def put_items(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        if conversation_id in self._conversations:
            mine = self._conversations[conversation_id][2]
            for one in items:
                mine.setdefault(one.id, one)

    def _find(self, conversation_id: str, principal: str) -> tuple[Conversation | None, dict[str, StoredItem]]:
        owner, conversation, items = self._conversations.get(conversation_id, (principal, None, {}))
        return (conversation, items) if owner == principal else (None, {})

    async def get_conversation(self, conversation_id: str, principal: str) -> Conversation | None:
        return self._find(conversation_id, principal)[0]

    async def update_conversation(self, conversation_id: str, principal: str, metadata: bytes) -> Conversation | None:
        conversation, items = self._find(conversation_id, principal)
        if conversation is None:
            return None
        changed = Conversation(conversation_id, conversation.created_at, metadata)
        self._conversations[conversation_id] = (principal, changed, items)
        return changed

    async def delete_conversation(self, conversation_id: str, principal: str) -> bool:
        is_there = self._find(conversation_id, principal)[0] is not None
        if is_there:
            del self._conversations[conversation_id]
        return is_there

    async def list_items(
        self, conversation_id: str, principal: str, *, limit: int, order: Order, after: str | None = None
    ) -> Page | None:
        conversation, mine = self._find(conversation_id, principal)
        if conversation is None:
            return None
        items = list(mine.values()) if order == "asc" else list(mine.values())[::-1]
        if after is not None:
            if after not in mine:
                raise NotFound(f"Item with id '{after}' not found.", param="after", code="item_not_found")
            items = items[items.index(mine[after]) + 1 :]
        return Page(items[:limit], len(items) > limit)

    async def get_item(self, conversation_id: str, principal: str, item_id: str) -> StoredItem | None:
        return self._find(conversation_id, principal)[1].get(item_id)

    async def delete_item(self, conversation_id: str, principal: str, item_id: str) -> bool:
        return self._find(conversation_id, principal)[1].pop(item_id, None) is not None
