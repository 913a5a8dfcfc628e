"""`POST /v1/responses/compact`: a context made short without a response.

What comes back is a window to begin a new chain with: the user's messages that were kept, then one sealed item that
holds them again together with the summary, so that a client may send all of it or the sealed item alone.
"""

from typing import Literal

import msgspec

from engine.backends.base import Backend
from engine.compaction import summarise, window_of
from engine.content import Content, InputText
from engine.continuation import check_input
from engine.items import Compaction, Item, Message
from engine.opening import Before, open_given, open_sequence, prepare_run
from engine.request import RunRequest
from engine.resolving import look_up_items, seal_window
from engine.sealing import Sealer
from engine.settings import Settings
from engine.usage import Usage
from engine.writer import MintId


class CompactedContext(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a context."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: Usage


async def compact(
    backend: Backend,
    request: RunRequest,
    before: Before | None,
    *,
    sealer: Sealer,
    settings: Settings,
    mint_id: MintId,
    now: float,
) -> CompactedContext:
    """Sum up the request's input, and everything before it. Raises RequestError, BackendError.

    An input that does not fit the model's context loses its oldest items first: nothing else could make it shorter.
    """
    given = request.items
    checked = check_input(look_up_items(given), before.response.answers if before else None)
    request = msgspec.structs.replace(
        request,
        items=open_given(checked.items, given, sealer),
        echo=msgspec.structs.replace(request.echo, truncation="auto"),
    )
    response_id = mint_id("resp")
    opened = open_sequence(backend, request, response_id, before)
    try:
        opened, extension = await prepare_run(backend, request, response_id, opened, given, before)
        opened.sequence.commit(extension)
        summary = await summarise(opened.sequence, response_id, settings.max_summary_tokens)
    finally:
        opened.sequence.close()
    earlier = before.response.round.items() if before and before.response.round else []
    window = window_of([*earlier, *request.items], summary.text, settings.max_kept_chars)
    kept = [_with_id(item, mint_id("msg")) for item in window[:-1] if isinstance(item, Message)]
    compaction = Compaction(id=mint_id("cmp"), encrypted_content=seal_window(window, sealer))
    return CompactedContext(id=response_id, created_at=int(now), output=[*kept, compaction], usage=summary.usage)


def _with_id(message: Message, own_id: str) -> Message:
    """A user's message as an output item: with an id, a status, and its text as a part."""
    content: Content = message.content
    if isinstance(content, str):
        content = [InputText(text=content)]
    return msgspec.structs.replace(message, id=own_id, content=content, status="completed")
