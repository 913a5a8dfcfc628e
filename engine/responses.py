"""The owner of all runs: starts their loops, finds them by id, checks appends against model and state, drains them."""

import logging
from dataclasses import replace
from functools import partial

import msgspec
import trio

from engine import loop
from engine.archive import Archive
from engine.backends.base import Backend, Extension, ToolChoice
from engine.clock import now_ms, wall_clock
from engine.compacting import CompactedContext, compact
from engine.continuation import Continuation, check_input
from engine.conversations import Conversations, telling_own_input
from engine.errors import NotFound, RequestError, ServerError
from engine.ids import mint_id
from engine.items import CompactionTrigger, Item
from engine.live import Live
from engine.opening import (
    Before,
    Opened,
    count_input,
    open_given,
    open_sequence,
    prepare,
    prepare_run,
    previous_not_found,
)
from engine.parameters import unsupported
from engine.request import RunRequest
from engine.resolving import look_up_items
from engine.response import Response
from engine.routing import apply_route
from engine.sealing import Sealer
from engine.settings import Settings
from engine.store import Store
from engine.usage import Timing

log = logging.getLogger(__name__)


class Appended(msgspec.Struct, frozen=True):
    """What an append did: the keys it answered, and what is still missing."""

    answered: list[str]
    still_pending: list[str]


class Responses:
    """All runs of a server. Their tasks live in `nursery`, which must outlive every connection."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        nursery: trio.Nursery,
        sealer: Sealer,
        store: Store | None = None,
    ) -> None:
        self.backend = backend
        self.conversations = Conversations(store) if store is not None else None
        self.sealer = sealer
        self._settings = settings
        self._nursery = nursery
        self._archive = Archive(store, backend, settings, sealer) if store is not None else None
        self._taking_up = trio.Lock()
        self._lives: dict[str, Live] = {}
        self._is_draining = False
        self._ended = trio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether no new runs are taken."""
        return self._is_draining

    def default_model(self) -> str:
        """The model of a request that names none."""
        return self.backend.resolve(None).id

    # --- starting ---

    async def create(self, request: RunRequest, principal: str, before: Before | None = None) -> Live:
        """Start a run, perhaps one that goes on from another (`before`).

        Raises RequestError (nothing was started) for input that the model cannot take or that does not fit the run
        before it.
        """
        self._admit(principal)
        request, route_ms = self._route(_with_trigger(request), is_run=True)
        if request.conversation_id is None:
            live = await self._create(request, principal, before)
        else:
            live = await self._create_in(request.conversation_id, request, principal)
        live.route_ms = route_ms
        return live

    async def _create_in(self, conversation_id: str, request: RunRequest, principal: str) -> Live:
        """A run that is given a conversation, which grows by the run when that is over."""
        if self.conversations is None:
            raise unsupported("conversation")
        earlier = await self.conversations.enter(conversation_id, principal)
        try:
            whole = msgspec.structs.replace(request, items=[*earlier, *request.items])
            with telling_own_input(len(earlier)):
                live = await self._create(whole, principal, None)
        except BaseException:
            self.conversations.leave(conversation_id)
            raise
        live.at_end = partial(self.conversations.leave, conversation_id, request.items, live.response)
        return live

    async def _create(self, request: RunRequest, principal: str, before: Before | None) -> Live:
        request = self._with_store(request, before)
        given, checked = request.items, self._check(request, before)
        request = msgspec.structs.replace(request, items=checked.items)
        response_id = mint_id("resp")
        opened = open_sequence(self.backend, request, response_id, before)
        try:
            opened, extension = await prepare_run(self.backend, request, response_id, opened, given, before)
            self._admit(principal)  # preparing may have waited for a thread; the door may have closed meanwhile
            if request.generate and not opened.sequence.num_context_tokens + extension.num_tokens:
                raise RequestError("The input is empty.", param="input")
            if opened.taken_from is not None:
                _check_can_continue(opened.taken_from)  # another lane may have been quicker
                opened.taken_from.hand_over()
        except BaseException:
            if opened.taken_from is None:
                opened.sequence.close()
            raise
        response = Response(
            response_id,
            request,
            self._settings,
            mint_id,
            wall_clock(),
            before.response if before else None,
            self.sealer,
        )
        response.answers.answered(checked.answered)
        return self._start(response, principal, opened, extension)

    async def count_input(self, request: RunRequest, principal: str, before: Before | None = None) -> int:
        """The input tokens of such a run's first step. Raises RequestError as `create` does."""
        request, _ = self._route(request)
        earlier: list[Item] = []
        if request.conversation_id is not None:
            if self.conversations is None:
                raise unsupported("conversation")
            earlier = await self.conversations.items(request.conversation_id, principal)
        with telling_own_input(len(earlier)):
            whole = msgspec.structs.replace(request, items=[*earlier, *request.items])
            asked = msgspec.structs.replace(whole, items=self._check(whole, before).items)
            return await count_input(self.backend, asked, whole.items, before)

    async def compact(self, request: RunRequest, principal: str, before: Before | None = None) -> CompactedContext:
        """The request's context made short, without a run. Raises EngineError."""
        self._admit(principal)
        request, _ = self._route(request)
        given, checked = request.items, self._check(request, before)
        request = msgspec.structs.replace(request, items=checked.items)
        return await compact(self.backend, request, given, before, self.sealer, self._settings, mint_id)

    def _check(self, request: RunRequest, before: Before | None) -> Continuation:
        """What is new in the input, as a model is to see it."""
        checked = check_input(look_up_items(request.items), before.response.answers if before else None)
        return replace(checked, items=open_given(checked.items, request.items, self.sealer))

    async def continue_from(self, previous: Live, items: list[Item], choice: ToolChoice | None) -> Live:
        """Start a run that goes on from a completed one, with its settings, tokens and KV cache.

        Raises RequestError, after which the completed run can still be continued, and NotFound when another run has
        done so.
        """
        _check_can_continue(previous)
        ended = previous.response
        request = msgspec.structs.replace(
            ended.request,
            items=items,
            tool_choice=choice or ended.step_spec().tool_choice,
            echo=msgspec.structs.replace(ended.request.echo, previous_response_id=ended.id),
            generate=True,
            compacts_first=False,
        )
        return await self.create(request, previous.principal, Before(ended, previous, is_own=True))

    def _with_store(self, request: RunRequest, before: Before | None) -> RunRequest:
        """The request as it can be stored. What goes on from an unstored run holds that, so it cannot be."""
        echo = request.echo
        is_stored = echo.store and self._archive is not None and (before is None or before.response.is_stored)
        return msgspec.structs.replace(request, echo=msgspec.structs.replace(echo, store=is_stored))

    def _start(self, response: Response, principal: str, opened: Opened, extension: Extension) -> Live:
        archive = self._archive if response.is_stored else None
        if archive is not None:
            archive.begin(response, principal, opened)
        live = Live(response, opened.sequence, self._settings, principal)
        live.tokens_seen = live.sequence.tokens.total
        live.sequence.commit(extension)
        response.start()
        if archive is not None:
            archive.record(live)
        self._carry_soon(live, loop.times_of(extension))
        return live

    def _carry_soon(self, live: Live, prepared: Timing | None) -> None:
        live.hold()  # released when its task ends, which is when nobody can find it any more
        self._lives[live.response.id] = live
        self._nursery.start_soon(self._carry, live, prepared, name=live.response.id)

    def _route(self, request: RunRequest, *, is_run: bool = False) -> tuple[RunRequest, float]:
        """The request with what its model means, and the milliseconds that took. Raises RequestError."""
        started_ms = now_ms()
        route = self.backend.resolve(request.echo.model)
        request = apply_route(route, request)
        if is_run and route.max_runs is not None:
            num_open = sum(
                live.response.is_open and live.response.request.echo.model == route.id for live in self._lives.values()
            )
            if num_open >= route.max_runs:
                raise _too_many(f"More than {route.max_runs} open responses of the model '{route.id}'.")
        return request, now_ms() - started_ms

    def _admit(self, principal: str) -> None:
        if self._is_draining:
            raise ServerError("The server is shutting down.", code="server_is_overloaded", status=503)
        num_open = sum(live.principal == principal and live.response.is_open for live in self._lives.values())
        if num_open >= self._settings.max_runs_per_principal:
            raise _too_many(f"More than {self._settings.max_runs_per_principal} open responses.")

    async def _carry(self, live: Live, prepared: Timing | None) -> None:
        """The run's task: its loop, and the time in which its end can still be read if others may do so."""
        try:
            await loop.run(live, prepared, self._settings)
            self._ended.set()
            if _is_read_later(live.response) and not self._is_draining:
                await trio.sleep(self._settings.ended_ttl_s)
        finally:
            del self._lives[live.response.id]
            live.release()

    # --- going on ---

    def find(self, response_id: str, principal: str) -> Live:
        """The run with this id, if it is in memory. Raises NotFound, also when it belongs to somebody else."""
        if live := self._in_memory(response_id, principal):
            return live
        raise _not_found(response_id)

    def _in_memory(self, response_id: str, principal: str) -> Live | None:
        live = self._lives.get(response_id)
        return live if live is not None and live.principal == principal else None

    async def read(self, response_id: str, principal: str) -> Response:
        """The run with this id as it is now, in memory or stored, to be looked at. Raises NotFound."""
        if live := self._in_memory(response_id, principal):
            return live.response
        response = await self._archive.read(response_id, principal) if self._archive else None
        if response is None:
            raise _not_found(response_id)
        return response

    async def recall(self, response_id: str, principal: str) -> Live:
        """The run with this id, in memory or from the store; one that was open there goes on. Raises NotFound."""
        if live := self._in_memory(response_id, principal):
            return live
        if self._archive is None:
            raise _not_found(response_id)
        async with self._taking_up:  # or two who ask at once would each take it up
            if live := self._in_memory(response_id, principal):
                return live
            revived = await self._archive.revive(response_id, principal)
            if revived is None:
                raise _not_found(response_id)
            if not revived.response.is_open:
                return self._archive.ended(revived, principal)
            self._admit(principal)
            if (live := self._archive.take_up(revived, principal)) is None:
                raise _not_found(response_id)
            self._carry_soon(live, None)
            return live

    async def before(self, response_id: str, principal: str) -> Before:
        """A stored run that another one may go on from. Raises RequestError, `previous_response_not_found`."""
        live = self._in_memory(response_id, principal)
        if live is not None and live.response.round is not None:
            if not (live.response.is_stored and live.response.can_go_on):
                raise previous_not_found(response_id)
            return Before(live.response, live)
        revived = await self._archive.revive(response_id, principal) if self._archive else None
        if revived is None or not revived.can_go_on:
            raise previous_not_found(response_id)
        return Before(revived.response, live, past=revived.past if revived.has_rest else None)

    def cancel(self, response_id: str, principal: str) -> None:
        """End an open run because its client wants that. Raises NotFound."""
        live = self.find(response_id, principal)
        if not live.response.is_open:
            raise _not_found(response_id)
        live.cancel("cancelled")

    async def append(self, live: Live, items: list[Item], choice: ToolChoice | None, started_ms: float) -> Appended:
        """Check an append against the state and the model, then commit all of it. Raises RequestError: nothing changed.

        `started_ms` is when the frame arrived (now_ms), for the run's timing.
        """
        response = live.response
        batch = response.check(items)
        live.validate_ms += now_ms() - started_ms
        new_items = response.peek_new_items(batch)
        extension = None
        while (batch.answers or batch.messages) and extension is None:
            prepared = await prepare(live.sequence, new_items, items)
            # While a long output was tokenised the run may have moved on, or another connection have answered.
            batch = response.check(items)
            before, new_items = new_items, response.peek_new_items(batch)
            extension = prepared if new_items == before else None
        if batch.parts:
            live.postpone(self._settings.pause_ttl_s)
        if response.commit(batch, choice):
            live.extension = extension
            live.resume()
        return Appended([*batch.answers, *batch.repeated], response.still_pending())

    # --- stopping ---

    async def drain(self) -> None:
        """Take no more runs; end paused ones at once, give the others `drain_s` to finish their step, then cut them."""
        self._is_draining = True
        for live in list(self._lives.values()):
            live.drain()
        with trio.move_on_after(self._settings.drain_s):
            while not all(live.is_over for live in self._lives.values()):
                self._ended = trio.Event()
                await self._ended.wait()
        for live in list(self._lives.values()):
            live.cancel("server_shutdown")

    @property
    def has_open(self) -> bool:
        """Whether any run can still go on."""
        return any(live.response.is_open for live in self._lives.values())


def _is_read_later(response: Response) -> bool:
    """Whether somebody may ask for the response who does not read it while it ends."""
    return response.request.echo.resumable or response.request.echo.background


def _with_trigger(request: RunRequest) -> RunRequest:
    """The request with what a `compaction_trigger` among its items asks for: as the last one, for nothing else."""
    items = [item for item in request.items if not isinstance(item, CompactionTrigger)]
    if len(items) == len(request.items):
        return request
    is_all = isinstance(request.items[-1], CompactionTrigger)
    generate = request.generate and not is_all
    return msgspec.structs.replace(request, items=items, compacts_first=True, generate=generate)


def _too_many(message: str) -> RequestError:
    return RequestError(message, code="rate_limit_exceeded", status=429)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")


def _check_can_continue(previous: Live) -> None:
    if not previous.can_continue:
        raise NotFound(f"Response with id '{previous.response.id}' cannot be continued any more.", param="response_id")
