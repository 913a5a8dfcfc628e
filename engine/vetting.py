"""What a run is about to be given, looked at: only what is new, at its start and with every append.

What was given before and may never have had its verdict, because the run was cut short, is looked at again.
"""

from engine.answers import Batch
from engine.errors import RequestError
from engine.items import Item
from engine.opening import Before, on_input
from engine.request import RunRequest
from engine.response import Response
from engine.safety.guard import Guard, Looked
from engine.safety.lookout import Lookout


async def look_at_start(
    lookout: Lookout | None, request: RunRequest, given: list[Item], before: Before | None
) -> Looked | None:
    """Look at what a run begins with. Raises RequestError that says where in the request, ServerError."""
    if lookout is None:
        return None
    instructions, earlier = request.echo.instructions, list[Item]()
    if before is not None:
        newest = before.response.round
        earlier = [] if newest is None else newest.given_last()
        if before.response.request.echo.instructions == instructions and not earlier:
            instructions = None
        if newest is not None and lookout.sees_history:
            earlier = newest.items()
    return await _look(lookout, request.items, given, instructions, earlier)


async def look_at_append(lookout: Lookout | None, response: Response, batch: Batch, given: list[Item]) -> Looked | None:
    """Look at what an append adds. Raises RequestError that says where in the input, ServerError."""
    if lookout is None:
        return None
    earlier = response.round.items() if lookout.sees_history and response.round is not None else []
    return await _look(lookout, [*batch.answers.values(), *batch.messages], given, None, earlier)


async def look_ahead(lookout: Lookout | None, items: list[Item]) -> bool:
    """Look at what a run is to begin with later, when it is looked at again. False when there is nobody to look.

    Raises RequestError that says where in the input, for what is blocked at once; ServerError.
    """
    if lookout is None:
        return False
    await _look(lookout, items, items, None, [])
    return True


def open_guard(lookout: Lookout | None, response: Response, looked: Looked | None = None) -> Guard | None:
    """What lets nothing of a run out that a policy may stop. looked: what came of looking at what it begins with."""
    if lookout is None:
        return None
    guard = lookout.open_guard(response.progress.note)
    guard.took(looked or Looked())
    return guard


def open_free_guard(lookout: Lookout | None, looked: Looked | None) -> Guard | None:
    """The same for something that is no run: what is only flagged is recorded nowhere."""
    if lookout is None:
        return None
    guard = lookout.open_guard(lambda found: None)
    guard.took(looked or Looked())
    return guard


async def _look(
    lookout: Lookout, new_items: list[Item], given: list[Item], instructions: str | None, earlier: list[Item]
) -> Looked:
    try:
        return await lookout.look_at(new_items, instructions=instructions, earlier=earlier)
    except RequestError as error:
        if error.param == "instructions":
            raise
        raise on_input(error, new_items, given) from error
