"""What a run's state looks like to its client: the response object, and the pause."""

from typing import Any, Final

import msgspec

from engine.events import (
    FinalEvent,
    Pause,
    PendingCall,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
    ResponseObject,
)
from engine.items import Item, wire_form
from engine.progress import Progress
from engine.status import Status

FINAL_EVENTS: Final[dict[Status, type[FinalEvent]]] = {
    Status.COMPLETED: ResponseCompleted,
    Status.INCOMPLETE: ResponseIncomplete,
    Status.FAILED: ResponseFailed,
    Status.CANCELLED: ResponseIncomplete,  # the API has no event of its own for it
}


def object_of(
    echo: ResponseObject,
    response_id: str,
    created_at: int,
    so_far: Progress,
    output: list[Item],
    changes: dict[str, Any],
) -> ResponseObject:
    """The response object as of now; `changes` are what only its end sets."""
    return msgspec.structs.replace(
        echo,
        id=response_id,
        created_at=created_at,
        status="in_progress" if so_far.status.is_open else so_far.status.value,
        output=list(map(wire_form, output)),
        usage=so_far.usage,
        run_usage=so_far.run_usage if so_far.num_steps or so_far.usage else msgspec.UNSET,
        timing=so_far.timing,
        safety=list(so_far.findings) or msgspec.UNSET,
        **changes,
    )


def pause_of(response_id: str, so_far: Progress, pending: list[PendingCall]) -> Pause:
    """What `response.done` says of a run whose step has just ended."""
    assert so_far.usage is not None and so_far.timing is not msgspec.UNSET
    return Pause(id=response_id, usage=so_far.usage, run_usage=so_far.run_usage, pending=pending, timing=so_far.timing)
