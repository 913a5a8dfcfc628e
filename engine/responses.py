"""The owner of all runs: starts their loops, finds them by id, appends to them, drains them."""

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec
import trio

from engine import loop
from engine.answers import Appended
from engine.appending import append
from engine.archive import Archive
from engine.backends.base import Backend, Extension, Route, Sequence, ToolChoice
from engine.clock import now_ms, wall_clock
from engine.compacting import CompactedContext, compact
from engine.continuation import Continuation, check_input
from engine.conversations import Conversations, telling_own_input
from engine.errors import RequestError
from engine.hosted.toolbox import Toolbox
from engine.hosting import Hosting, approvals_in, begin_hosting, open_hosting
from engine.ids import mint_id, mint_within
from engine.items import Item
from engine.ledger import Ledger
from engine.live import Live
from engine.meter import Meter
from engine.opening import (
    Before,
    Opened,
    count_input,
    open_given,
    open_sequence,
    prepare_run,
    without_sequence,
)
from engine.parameters import unsupported
from engine.recall import Recall
from engine.records import Records, response_not_found
from engine.references import resolve
from engine.request import Lifecycle, RunRequest
from engine.response import Response
from engine.routing import apply_route
from engine.run_table import RunTable
from engine.safety.guard import Looked
from engine.safety.lookout import Lookout
from engine.sealing import Sealer
from engine.settings import Settings
from engine.store import Store
from engine.till import Till
from engine.vetting import look_ahead, look_at_start, open_free_guard, open_guard

log = logging.getLogger(__name__)


class Responses:
    """All runs of a server. Their tasks live in `nursery`, which must outlive every connection."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        nursery: trio.Nursery,
        sealer: Sealer,
        store: Store | None = None,
        ledger: Ledger | None = None,
        lookout: Lookout | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self.backend = backend
        self.conversations = Conversations(store, sealer) if store is not None else None
        self.sealer = sealer
        self._lookout = lookout
        self._toolbox = toolbox
        self._settings = settings
        self._archive = Archive(store, backend, settings, sealer) if store is not None else None
        self._till = Till(ledger, settings)
        self.runs = RunTable(settings, nursery)
        self.records = Records(self.runs, self._archive)
        self._recall = Recall(self.runs, self._archive, self._till, lookout, toolbox)

    @property
    def is_draining(self) -> bool:
        """Whether no new runs are taken."""
        return self.runs.is_draining

    def default_model(self) -> str:
        """The model of a request that names none."""
        return self.backend.resolve(None).id

    # --- starting ---

    async def create(self, request: RunRequest, principal: str, before: Before | None = None) -> Live:
        """Start a run, perhaps one that goes on from another (`before`).

        Raises RequestError (nothing was started) for input that the model cannot take or that does not fit the run
        before it.
        """
        self.runs.admit(principal)
        self._till.check(principal)
        request, route, route_ms = self._route(request.with_trigger())
        self._admit(principal, route)
        request, hosting = await self._resolved(request, principal, before)
        if request.conversation_id is None:
            live = await self._create(request, route, principal, before, hosting)
        else:
            live = await self._create_in(request.conversation_id, request, route, principal, hosting)
        live.route_ms = route_ms
        return live

    async def _create_in(
        self, conversation_id: str, request: RunRequest, route: Route, principal: str, hosting: Hosting
    ) -> Live:
        """A run that is given a conversation, which grows by the run when that is over."""
        if self.conversations is None:
            raise unsupported("conversation")
        newest_id = await self.conversations.enter(conversation_id, principal)
        try:
            live = await self._go_on_in(conversation_id, newest_id, request, route, principal, hosting)
        except BaseException:
            self.conversations.leave(conversation_id)
            raise
        live.at_end = partial(self.conversations.leave, conversation_id, request.items, live.response)
        return live

    async def _go_on_in(
        self,
        conversation_id: str,
        newest_id: str | None,
        request: RunRequest,
        route: Route,
        principal: str,
        hosting: Hosting,
    ) -> Live:
        """A run that goes on from the conversation's newest or, when that is not to be had, is given all items."""
        assert self.conversations is not None
        before = None
        if newest_id is not None:
            with suppress(RequestError):  # deleted
                before = await self.records.before(newest_id, principal)
        if before is not None:
            return await self._create(request, route, principal, before, hosting)
        earlier = await self.conversations.items(conversation_id, principal)
        whole = msgspec.structs.replace(request, items=[*earlier, *request.items])
        with telling_own_input(len(earlier)):
            return await self._create(whole, route, principal, None, hosting)

    async def _create(
        self, request: RunRequest, route: Route, principal: str, before: Before | None, hosting: Hosting
    ) -> Live:
        request = self._with_store(request, before)
        given, checked = request.items, self._check(request, before)
        request = msgspec.structs.replace(request, items=checked.items)
        looked = await look_at_start(self._lookout, request, given, before)
        approvals = approvals_in(request, before)
        held, request = (request.items, request.bare()) if approvals else ([], request)
        response_id = mint_id("resp")
        opened = open_sequence(self.backend, request, response_id, before)
        try:
            opened, extension = await prepare_run(self.backend, request, response_id, opened, given, before)
            if request.generate and not opened.sequence.num_context_tokens + extension.num_tokens and not held:
                raise RequestError("The input is empty.", param="input")
            if opened.taken_from is not None and not opened.taken_from.can_continue:  # somebody was quicker
                opened = open_sequence(self.backend, request, response_id, without_sequence(before))
                opened, extension = await prepare_run(self.backend, request, response_id, opened, given, before)
            self._admit(principal, route)  # again: while this was prepared the door may have closed, or others started
            meter = self._till.open_meter(response_id, request, principal, opened.sequence, extension.num_tokens)
            if opened.taken_from is not None:
                opened.taken_from.hand_over()
                self.runs.let_go(opened.taken_from.response.id)
        except BaseException:
            if opened.taken_from is None:
                opened.sequence.close()
            raise
        response = Response(
            response_id,
            request,
            self._settings,
            mint_within(response_id),
            wall_clock(),
            before.response if before else None,
            self.sealer,
            keeps_items=self._lookout is not None and self._lookout.sees_history,
        )
        response.answers.answered(checked.answered)
        response.hold(held, approvals)
        live = self._start(response, principal, opened, extension, looked, hosting)
        live.meter = meter
        if before is not None:
            live.lineage = before.followed_by(response_id)
        return live

    async def count_input(self, request: RunRequest, principal: str, before: Before | None = None) -> int:
        """The input tokens of such a run's first step. Raises RequestError as `create` does."""
        request, _, _ = self._route(request)
        request, _ = await self._resolved(request, principal, before)
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
        self.runs.admit(principal)
        self._till.check(principal)
        request, _, _ = self._route(request)
        request, _ = await self._resolved(request, principal, before)
        given, checked = request.items, self._check(request, before)
        request = msgspec.structs.replace(request, items=checked.items)
        looked = await look_at_start(self._lookout, request, given, before)
        guard = open_free_guard(self._lookout, looked)
        before = replace(before, is_own=False) if before else None  # its sequence stays with it

        def open_meter(
            response_id: str, request: RunRequest, sequence: Sequence, num_new: int, num_sampled: int
        ) -> Meter | None:
            return self._till.open_meter(response_id, request, principal, sequence, num_new, num_sampled)

        try:
            return await compact(
                self.backend, request, given, before, self.sealer, self._settings, mint_id, open_meter, guard
            )
        finally:
            if guard is not None:
                guard.close()

    def _check(self, request: RunRequest, before: Before | None) -> Continuation:
        """What is new in the input, as a model is to see it."""
        checked = check_input(request.items, before.response.answers if before else None)
        return replace(checked, items=open_given(checked.items, request.items, self.sealer))

    async def _resolved(self, request: RunRequest, principal: str, before: Before | None) -> tuple[RunRequest, Hosting]:
        """The request with the items that it names, and with what its hosted tools offer. Raises RequestError."""
        items = await resolve(request.items, partial(self.records.read, principal=principal))
        request = msgspec.structs.replace(request, items=items)
        return await open_hosting(self._toolbox, request, before)

    async def vet(self, items: list[Item]) -> bool:
        """Look at what a run is to go on with later. False when there is nobody to look.

        Raises RequestError that says where in the input, for what a policy blocks at once; ServerError.
        """
        return await look_ahead(self._lookout, items)

    async def continue_from(
        self, previous: Live, items: list[Item], choice: ToolChoice | None, lifecycle: Lifecycle
    ) -> Live:
        """Start a run of this lifecycle that goes on from a completed one, with its settings, tokens and KV cache.

        Raises RequestError, after which the completed run can still be continued, and NotFound when another run has
        done so and nothing is stored.
        """
        before = await self.records.to_continue(previous)
        ended = previous.response
        request = msgspec.structs.replace(
            ended.request,
            items=items,
            tool_choice=choice or ended.step_spec().tool_choice,
            echo=msgspec.structs.replace(ended.request.echo, previous_response_id=ended.id),
            generate=True,
            compacts_first=False,
            lifecycle=lifecycle,
        )
        return await self.create(request, previous.principal, before)

    def _with_store(self, request: RunRequest, before: Before | None) -> RunRequest:
        """The request as it can be stored. What goes on from an unstored run holds that, so it cannot be."""
        echo = request.echo
        is_stored = echo.store and self._archive is not None and (before is None or before.response.is_stored)
        if echo.background and not is_stored:
            raise RequestError("A response in the background has to be stored; this one cannot be.", param="background")
        return msgspec.structs.replace(request, echo=msgspec.structs.replace(echo, store=is_stored))

    def _start(
        self,
        response: Response,
        principal: str,
        opened: Opened,
        extension: Extension,
        looked: Looked | None,
        hosting: Hosting,
    ) -> Live:
        archive = self._archive if response.is_stored else None
        if archive is not None:
            archive.begin(response, principal, opened)
        live = Live(response, opened.sequence, self._settings, principal)
        live.guard = open_guard(self._lookout, response, looked)
        live.tokens_seen = live.sequence.tokens.total
        live.sequence.commit(extension)
        response.start()
        if archive is not None:
            archive.record(live)
        begin_hosting(self._toolbox, live, hosting)
        self.runs.carry_soon(live, loop.times_of(extension))
        return live

    def _route(self, request: RunRequest) -> tuple[RunRequest, Route, float]:
        """The request with what its model means, that, and the milliseconds that took. Raises RequestError."""
        started_ms = now_ms()
        route = self.backend.resolve(request.echo.model)
        return apply_route(route, request), route, now_ms() - started_ms

    def _admit(self, principal: str, route: Route) -> None:
        """Raises ServerError when no runs are taken any more, RequestError when there are too many."""
        self.runs.admit(principal)
        if route.max_runs is not None:
            self.runs.admit_model(route.id, route.max_runs)

    # --- going on ---

    async def watch(self, response_id: str, principal: str) -> Live:
        """The run with this id, in memory or stored, to be read; nothing happens to it. Raises NotFound."""
        return await self._recall.find(response_id, principal, takes_up=False)

    async def recall(self, response_id: str, principal: str) -> Live:
        """The run with this id, in memory or from the store; one that was open there goes on. Raises NotFound."""
        return await self._recall.find(response_id, principal, takes_up=True)

    def cancel(self, response_id: str, principal: str) -> None:
        """End an open run because its client wants that. Raises NotFound."""
        live = self.records.find(response_id, principal)
        if not live.response.is_open:
            raise response_not_found(response_id)
        live.cancel("cancelled")

    async def append(self, live: Live, items: list[Item], choice: ToolChoice | None, started_ms: float) -> Appended:
        """See appending. Raises RequestError: nothing changed."""
        return await append(live, items, choice, started_ms, self._till, self._lookout, self._settings)

    # --- stopping ---

    async def drain(self) -> None:
        """Take no more runs, and end those there are; see RunTable."""
        for live in self._archive.resting() if self._archive else ():
            live.drain()
        await self.runs.drain()

    @property
    def has_open(self) -> bool:
        """Whether any run can still go on."""
        return self.runs.has_open
