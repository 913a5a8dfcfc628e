"""The sequence that a run begins with: a new one, the one of the run it goes on from, or a copy of that.

Under the same settings the earlier sequence goes on and only what is new is prepared; under others, or when the input
has to be cut, everything is rendered anew.
"""

from dataclasses import dataclass, field, replace

import msgspec

from engine.backends.base import Backend, Extension, Past, RunSpec, Sequence
from engine.errors import NotFound, RequestError
from engine.history import Lineage
from engine.items import Item, item_id
from engine.live import Live
from engine.request import RunRequest
from engine.resolving import open_items
from engine.response import Response
from engine.sealing import Sealer
from engine.truncation import droppable_units, without_oldest


@dataclass(frozen=True)
class Before:
    """The run that another one goes on from, and its sequence if that is still here, or else what it has been through.

    is_own: the new run takes the earlier one's place, so it may take over the sequence, too. lineage: of one that is
    not `live`.
    """

    response: Response
    live: Live | None = None
    is_own: bool = False
    past: Past | None = None
    lineage: Lineage | None = None

    def followed_by(self, response_id: str) -> Lineage:
        """The lineage of the new run."""
        return Lineage(response_id, self.live.lineage if self.live else self.lineage or Lineage(self.response.id))

    @property
    def lacks_items(self) -> bool:
        """Whether its items, which may be needed, are in the store alone."""
        return self.response.round is None and self.response.is_stored


@dataclass(frozen=True)
class Opened:
    """A sequence, the earlier items that it has yet to be given, and whose it still is.

    goes_on: it has been through all that the earlier run's has; if it has not, num_cut of the oldest units are left out
    of what it is given.
    """

    sequence: Sequence
    earlier: list[Item] = field(default_factory=list)
    taken_from: Live | None = None
    goes_on: bool = False
    num_cut: int = 0


def open_sequence(backend: Backend, request: RunRequest, response_id: str, before: Before | None) -> Opened:
    """A sequence that holds, or is to be given, everything before the new items.

    Under the same settings the earlier run's own sequence goes on, or a copy of it; under others, everything is
    rendered anew.
    """
    if before is None:
        return Opened(backend.open_sequence(request.spec(response_id)))
    if _is_same(before.response.request, request) and (opened := _go_on(backend, request, response_id, before)):
        return opened
    if before.response.round is None:
        raise previous_not_found(before.response.id)
    return Opened(backend.open_sequence(request.spec(response_id)), before.response.round.items())


def _go_on(backend: Backend, request: RunRequest, response_id: str, before: Before) -> Opened | None:
    """The earlier sequence or one like it; None when there is no such thing."""
    live = before.live
    if live and live.can_continue:
        if before.is_own:
            return Opened(live.sequence, taken_from=live, goes_on=True)
        return Opened(live.sequence.fork(response_id), goes_on=True)
    if before.past is None:
        return None
    sequence = restore_sequence(backend, request.spec(response_id), before.past)
    return None if sequence is None else Opened(sequence, goes_on=True)


def restore_sequence(backend: Backend, spec: RunSpec, past: Past) -> Sequence | None:
    """A sequence that has been through `past`; None when this backend cannot make one of that. Raises RequestError."""
    sequence = backend.open_sequence(spec)
    try:
        sequence.restore(past)
    except ValueError:
        sequence.close()
        return None
    return sequence


async def prepare_run(
    backend: Backend, request: RunRequest, response_id: str, opened: Opened, given: list[Item], before: Before | None
) -> tuple[Opened, Extension]:
    """Prepare the new items, and what the sequence has yet to be given of the earlier ones."""
    try:
        return opened, await prepare(opened.sequence, [*opened.earlier, *request.items], given)
    except RequestError as error:
        if error.code != "context_length_exceeded" or request.echo.truncation != "auto":
            raise
        earlier = before.response.round.items() if before and before.response.round else []
        shorter = await _open_truncated(backend, request, response_id, [*earlier, *request.items])
        if shorter is None:
            raise
        if opened.taken_from is None:
            opened.sequence.close()
        return shorter


async def _open_truncated(
    backend: Backend, request: RunRequest, response_id: str, items: list[Item]
) -> tuple[Opened, Extension] | None:
    """A sequence for the items but the oldest, as few of them missing as will do; None when none fits."""
    sequence = backend.open_sequence(request.spec(response_id))
    units = droppable_units(items)
    fewest, most, num_cut, found = 1, len(units), 0, None
    try:
        while fewest <= most:
            number = (fewest + most) // 2
            try:
                found = await sequence.prepare(without_oldest(items, units, number))
                num_cut, most = number, number - 1
            except RequestError as error:
                if error.code != "context_length_exceeded":
                    raise
                fewest = number + 1
    except BaseException:
        sequence.close()
        raise
    if found is None:
        sequence.close()
        return None
    return Opened(sequence, num_cut=num_cut), found


async def count_input(backend: Backend, request: RunRequest, given: list[Item], before: Before | None) -> int:
    """The `input_tokens` of the first step that a run would take; nothing starts, and `before` stays as it is."""
    opened = open_sequence(backend, request, "", before)
    try:
        opened, extension = await prepare_run(backend, request, "", opened, given, before)
        sequence = opened.sequence
        return sequence.num_context_tokens + extension.num_tokens + sequence.num_turn_tokens
    finally:
        if opened.taken_from is None:
            opened.sequence.close()


def without_sequence(before: Before | None) -> Before | None:
    """The same run to go on from, by its items. Raises NotFound when there are none."""
    live = before.live if before is not None and before.response.round is None else None
    if live is not None and not live.can_continue:
        raise cannot_continue(live)
    return None if before is None else replace(before, live=None)


def given_items(response: Response) -> list[Item]:
    """The items before the response's own, as far as they are kept."""
    if response.round is None:
        raise NotFound(f"The input items of response '{response.id}' are not kept.", code="items_not_kept")
    own = {item_id(item) for item in response.output}
    return [item for item in response.round.shown() if item_id(item) is None or item_id(item) not in own]


def cannot_continue(previous: Live) -> NotFound:
    """The error of a run that another one has gone on from, or whose context is gone."""
    message = f"Response with id '{previous.response.id}' cannot be continued any more."
    return NotFound(message, param="response_id")


def previous_not_found(response_id: str) -> RequestError:
    """The error of an id that cannot be gone on from; clients know it by its code and send everything again."""
    return RequestError(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _is_same(one: RunRequest, other: RunRequest) -> bool:
    """Whether a sequence opened for one request serves the other: all but its length limit is the same."""
    return _bare(one) == _bare(other)


def _bare(request: RunRequest) -> RunSpec:
    return msgspec.structs.replace(request.spec(""), max_output_tokens=None)


def open_given(items: list[Item], given: list[Item], sealer: Sealer) -> list[Item]:
    """The new ones of the given items with what is sealed in them opened. Raises RequestError for what cannot be."""
    try:
        return open_items(items, sealer)
    except RequestError as error:
        raise on_input(error, items, given) from error


async def prepare(sequence: Sequence, new_items: list[Item], given: list[Item]) -> Extension:
    """Render and tokenise. An error's path is turned from the rendered items to the ones the client sent."""
    try:
        return await sequence.prepare(new_items)
    except RequestError as error:
        raise on_input(error, new_items, given) from error


def on_input(error: RequestError, new_items: list[Item], given: list[Item]) -> RequestError:
    """The error with its path, from `[i]` on, turned from the new items to the ones the client sent."""
    if error.param is None or not error.param.startswith("["):
        error.param = error.param or "input"
        return error
    number, _, rest = error.param[1:].partition("]")
    culprit = new_items[int(number)]
    for index, item in enumerate(given):
        if item is culprit:
            error.param = f"input[{index}]{rest}"
            return error
    error.param = "input"
    return error
