"""An append: checked against the state and the model, then taken in as a whole."""

from engine.answers import Appended
from engine.backends.base import ToolChoice
from engine.clock import now_ms
from engine.hosting import has_approvals
from engine.items import Item
from engine.live import Live
from engine.opening import prepare
from engine.safety.lookout import Lookout
from engine.settings import Settings
from engine.till import Till
from engine.vetting import look_at_append


async def append(
    live: Live,
    items: list[Item],
    choice: ToolChoice | None,
    started_ms: float,
    till: Till,
    lookout: Lookout | None,
    settings: Settings,
) -> Appended:
    """Check an append against the state and the model, then commit all of it. Raises RequestError: nothing changed.

    `started_ms` is when the frame arrived (now_ms), for the run's timing.
    """
    response = live.response
    batch = response.check(items)
    if batch.messages and not batch.answers:
        till.check(live.principal)
    live.validate_ms += now_ms() - started_ms
    new_items = response.peek_new_items(batch)
    extension, looked = None, None
    while (batch.answers or batch.messages) and extension is None:
        looked = await look_at_append(lookout, response, batch, items)
        prepared = await prepare(live.sequence, new_items, items)
        # While a long output was tokenised the run may have moved on, or another connection have answered.
        batch = response.check(items)
        before, new_items = new_items, response.peek_new_items(batch)
        extension = prepared if new_items == before else None
    if batch.parts:
        live.postpone(settings.pause_ttl_s)
    if live.guard is not None and looked is not None:
        live.guard.took(looked)
    goes_on = response.commit(batch, choice)
    if live.hosted is not None and has_approvals(batch):
        live.hosted.approvals_came()
    if goes_on:
        live.extension = None if response.answers.is_unsettled else extension
        live.resume()
    elif batch.answers or batch.parts:
        live.stir()
    return Appended([*batch.answers, *batch.repeated], response.still_pending())
