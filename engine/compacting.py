"""`POST /v1/responses/compact`: a context made short without a response.

What comes back is a window to begin a new chain with: the user's messages that were kept, then one sealed item that
holds them again together with the summary, so that a client may send all of it or the sealed item alone.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from engine.backends.base import Backend, Sequence
from engine.clock import wall_clock
from engine.compaction import Summary, summarise, window_of
from engine.content import Content, InputText
from engine.errors import RequestError
from engine.items import Compaction, Item, Message
from engine.meter import Meter
from engine.opening import Before, open_sequence, prepare_run
from engine.request import RunRequest
from engine.resolving import seal_window
from engine.safety.guard import Guard
from engine.sealing import Sealer
from engine.settings import Settings
from engine.usage import Usage
from engine.writer import MintId

OpenMeter = Callable[[str, RunRequest, Sequence, int, int], Meter | None]


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
    given: list[Item],
    before: Before | None,
    sealer: Sealer,
    settings: Settings,
    mint_id: MintId,
    open_meter: OpenMeter,
    guard: Guard | None,
) -> CompactedContext:
    """Sum up the request's items, and everything before them. `given`: what the client sent, for the paths of errors.

    open_meter: is given an id, the request, the sequence, and the tokens that are new and may be sampled. guard: what
    the model is given has been looked at there.
    Raises RequestError, ServerError. What does not fit the model's context loses its oldest items first: nothing else
    could make it shorter.
    """
    request = msgspec.structs.replace(request, echo=msgspec.structs.replace(request.echo, truncation="auto"))
    response_id = mint_id("resp")
    opened = open_sequence(backend, request, response_id, before)
    try:
        opened, extension = await prepare_run(backend, request, response_id, opened, given, before)
        meter = open_meter(response_id, request, opened.sequence, extension.num_tokens, settings.max_summary_tokens)
        opened.sequence.commit(extension)
        summary = await _summarise(opened.sequence, response_id, settings.max_summary_tokens, meter)
    finally:
        opened.sequence.close()
    if guard is not None and (found := await guard.weigh(summary.text)):
        raise RequestError(f"The summary was refused by the policy '{found.policy}'.", code="invalid_prompt")
    earlier = before.response.round.items() if before and before.response.round else []
    window = window_of([*earlier, *request.items], summary.text, settings.max_kept_chars)
    kept = [_with_id(item, mint_id("msg")) for item in window[:-1] if isinstance(item, Message)]
    compaction = Compaction(id=mint_id("cmp"), encrypted_content=seal_window(window, sealer))
    output: list[Item] = [*kept, compaction]
    return CompactedContext(id=response_id, created_at=int(wall_clock()), output=output, usage=summary.usage)


async def _summarise(sequence: Sequence, response_id: str, max_tokens: int, meter: Meter | None) -> Summary:
    """A summary that is paid for, also when it is cut."""
    if meter is None:
        return await summarise(sequence, response_id, max_tokens)
    status = "incomplete"
    meter.step_started()
    try:
        summary = await summarise(sequence, response_id, max_tokens)
        await meter.settle("summary", summary.usage, summary.timing)
        status = "completed"
    finally:
        meter.end(status)
    return summary


def _with_id(message: Message, own_id: str) -> Message:
    """A user's message as an output item: with an id, a status, and its text as a part."""
    content: Content = message.content
    if isinstance(content, str):
        content = [InputText(text=content)]
    return msgspec.structs.replace(message, id=own_id, content=content, status="completed")
