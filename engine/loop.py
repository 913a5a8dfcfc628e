"""The sampling loop: one task per run, from its first token to its end.

Step: take what is new through the model, sample until it stops, let the state machine decide. Pause: wait for the
client with everything kept. Nothing here looks at the history.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import trio

from engine.backends.base import Delta, Extension, Sequence, StepEnd
from engine.clock import now_ms, wall_clock
from engine.compaction import summarise, window_of
from engine.errors import BackendError, EngineError, RequestError, ServerError
from engine.ledger import SegmentReason
from engine.live import Live
from engine.safety.guard import Guard
from engine.settings import Settings
from engine.status import Status
from engine.usage import Timing, Usage, count_usage

log = logging.getLogger(__name__)

_OUR_FAULT: Final = "The server had an error while processing the response."


async def run(live: Live, prepared: Timing | None, settings: Settings) -> None:
    """Carry a run to its end. Never raises but Cancelled.

    prepared: what its first input took; None for a run that is taken up again at the end of a step.
    """
    response = live.response
    try:
        with live.scope:
            steps = partial(_run_steps, live, prepared, settings)
            await (steps() if live.hosted is None else live.hosted.carry(steps, live.notify, live.guard))
    except EngineError as error:
        _end_by(live, partial(response.fail, error, wall_clock()))
    except Exception:
        log.exception("run %s failed", response.id)
        _end_by(live, partial(response.fail, ServerError(_OUR_FAULT), wall_clock()))
    finally:
        # Reached by cancellation too: of this scope (cancel, lease, supersede) or of the whole server.
        if response.status is Status.IN_PROGRESS:
            live.sequence.cancel_step()
        _end_by(live, partial(live.end, live.end_reason))
        if live.guard is not None:
            live.guard.close()
        if live.meter is not None:
            live.meter.end(response.status.value)
        live.notify()
    await live.wait_durable()


def _end_by(live: Live, ending: Callable[[], None]) -> None:
    """End the run so. Where what it holds is broken beyond that, it has failed: nobody else's run ends with it."""
    try:
        ending()
    except Exception:
        log.exception("run %s cannot be ended in order", live.response.id)
        live.response.abandon(ServerError(_OUR_FAULT), wall_clock())


async def _run_steps(live: Live, prepared: Timing | None, settings: Settings) -> None:
    if prepared is None:
        given = await _next_step(live, settings)
    else:
        given = await _first_step(live, prepared, settings)
    while given is not None:
        if _is_too_long(live):
            compacted = await _compact(live, settings)
            if compacted is None:
                return
            given += compacted
        await _sample(live, given, settings)
        await live.wait_durable()
        given = None  # or the wait for the client would keep it
        given = await _next_step(live, settings)


async def _first_step(live: Live, prepared: Timing, settings: Settings) -> Timing | None:
    """The times of everything before the first step; None when there is none."""
    response = live.response
    if response.is_held and live.hosted is not None:
        hosted_ms = await live.hosted.wait_settled()
        prepared += await _extend(live) + Timing(hosted_tools_ms=hosted_ms)
    if response.request.compacts_first:
        compacted = await _compact(live, settings)
        if compacted is None:
            return None
        prepared += compacted
    given = _given(live, prepared, 0.0)
    if response.request.generate:
        return given
    if live.guard is not None:
        await live.guard.wait_settled()
    usage = count_usage(live.sequence.num_context_tokens, 0)
    given = await _settle(live, "prepared", usage, given)
    response.complete_without_sampling(usage, given, wall_clock())
    return None


async def _next_step(live: Live, settings: Settings) -> Timing | None:
    """Wait for what the next step begins with, and take it in. The times of that; None when the run is over."""
    paused_at = now_ms()
    if live.response.status is Status.PAUSED:
        await _wait_for_client(live, settings)
    if not live.response.is_open:
        return None
    wait_ms = now_ms() - paused_at
    hosted = None if live.hosted is None else Timing(hosted_tools_ms=await live.hosted.wait_settled())
    try:
        prepared = await _extend(live)
        return _given(live, prepared if hosted is None else prepared + hosted, wait_ms)
    except RequestError as error:
        # Only an early append can meet this: what fitted when it was taken no longer does after the step.
        if error.code != "context_length_exceeded":
            raise
        live.end("context_length_exceeded")
        return None


def _is_too_long(live: Live) -> bool:
    threshold = live.response.request.compact_threshold
    return threshold is not None and live.sequence.num_context_tokens > threshold


async def _compact(live: Live, settings: Settings) -> Timing | None:
    """Put a summary in the place of the context, and say so. What it took; None when that was blocked: the run ends."""
    response, sequence = live.response, live.sequence
    assert response.round is not None, "a run that may compact keeps its items"
    response.start_compaction()
    live.notify()
    if live.meter is not None:
        live.meter.step_started()
    summary = await summarise(sequence, response.id, settings.max_summary_tokens)
    timing = await _settle(live, "summary", summary.usage, summary.timing)
    if live.guard is not None and (found := await live.guard.weigh(summary.text)):
        response.progress.add(summary.usage)
        live.end("content_filter", found)
        return None
    window = window_of(response.round.items(), summary.text, settings.max_kept_chars)
    sequence.restart()
    if live.meter is not None:
        live.meter.context_replaced()
    extension = await sequence.prepare(window)
    sequence.commit(extension)
    response.end_compaction(window, summary.usage)
    live.notify()
    return timing + times_of(extension)


def times_of(extension: Extension) -> Timing:
    """What preparing it took. The extension itself may hold a million token ids, so no run's task keeps it."""
    return Timing(render_ms=extension.render_ms, tokenize_ms=extension.tokenize_ms, items_new=extension.num_items)


def _given(live: Live, prepared: Timing, wait_ms: float) -> Timing:
    """The times of everything before sampling, taken over from where they were measured."""
    timing = msgspec.structs.replace(
        prepared,
        queue_ms=live.queue_ms,
        route_ms=live.route_ms,
        validate_ms=live.validate_ms,
        client_wait_ms=wait_ms,
    )
    live.queue_ms = live.route_ms = live.validate_ms = 0.0
    return timing


async def _sample(live: Live, given: Timing, settings: Settings) -> None:
    """One step: until the model stops, or the run ends because it cannot."""
    source = _start_step(live)
    is_steered = False
    while True:
        deltas: list[Delta] = []
        with trio.move_on_after(settings.step_timeout_s) as live.waiting:
            deltas = await source.next_deltas()
        if live.waiting.cancelled_caught and not live.wants_interrupt:
            raise BackendError("The model gave nothing for too long.")
        if await _take_in(live, deltas, given, is_steered=is_steered):
            return
        if live.wants_interrupt and live.can_be_interrupted and not is_steered:
            # All that was sampled is told, so that the context holds nothing unsaid.
            is_steered = True
            if await _take_in(live, source.interrupt(), given, is_steered=True):
                return
        live.notify()
        # Readers first: what the backend does at the end of a step would delay events that are there already.
        await trio.lowlevel.checkpoint()
        await live.wait_drained()


def _start_step(live: Live) -> Sequence | Guard:
    """Where the deltas of a new step are to be had: from the sequence, or from the guard before it."""
    live.sequence.start_step(live.response.step_spec())
    if live.meter is not None:
        live.meter.step_started()
    if live.guard is None:
        return live.sequence
    live.guard.begin_step(live.sequence)
    return live.guard


async def _take_in(live: Live, deltas: list[Delta], given: Timing, *, is_steered: bool) -> bool:
    """Tell what the deltas say. True when the step's end was among them."""
    for delta in deltas:
        if isinstance(delta, StepEnd):
            await _end_step(live, delta, given, is_steered=is_steered)
            return True
        live.response.feed(delta)
        if live.hosted is not None:
            live.hosted.start_new()
    return False


async def _end_step(live: Live, end: StepEnd, given: Timing, *, is_steered: bool) -> None:
    response = live.response
    if response.request.wants_tokens:
        response.tokens_joined(list(live.sequence.tokens.since(live.tokens_seen, live.num_tokens_shown)))
        live.tokens_seen = live.sequence.tokens.total
    timing = await _settle(live, end.reason, end.usage, given + end.timing)
    if live.hosted is not None:
        live.notify()
        timing += Timing(hosted_tools_ms=await live.hosted.wait_settled())
    response.end_step(end, timing, wall_clock(), is_steered=is_steered)
    live.record()
    live.notify()


async def _settle(live: Live, reason: SegmentReason, usage: Usage, timing: Timing) -> Timing:
    """Write down what was sampled, before anybody learns of it. The timing with what that took."""
    return timing if live.meter is None else await live.meter.settle(reason, usage, timing)


async def _wait_for_client(live: Live, settings: Settings) -> None:
    """Wait at the pause. When the client did not come in time, the run has ended."""
    response = live.response
    if live.is_draining:
        live.end("server_shutdown")
        return
    await _let_readers_go_first()
    if response.status is Status.PAUSED:
        response.log.pack()
    is_waiting_for_calls = bool(response.still_pending())
    timeout_s = settings.pause_ttl_s if is_waiting_for_calls else settings.idle_ttl_s
    await live.wait_resumed(timeout_s, partial(_foresee, live))
    if response.status is Status.PAUSED:
        live.end("append_timeout" if is_waiting_for_calls else "idle_timeout")


async def _foresee(live: Live) -> None:
    """Let the backend compute what was given already, while the client's tools still run."""
    if outputs := live.response.foreseen():
        await live.sequence.foresee(outputs)


async def _let_readers_go_first() -> None:
    """A reader takes two turns of the scheduler: it wakes, and it may wait a turn for more to send."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


async def _extend(live: Live) -> Timing:
    """Commit what the client gave. The append that completed it has prepared it already, unless sampling went on."""
    items = live.response.take_new_items()
    if live.recorder is not None:
        live.recorder.took(items)
    extension, live.extension = live.extension, None
    if extension is None or extension.base != live.sequence.num_context_tokens:
        extension = await live.sequence.prepare(items)
    live.sequence.commit(extension)
    return times_of(extension)
