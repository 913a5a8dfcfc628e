"""The server: one listener, everything that must outlive it opened around it.

Lifetimes nest: ledger > store > backend > classifiers > hosted tools > responses > listener > connections. SIGTERM and
SIGINT close the listener, drain the runs, let connections flush and close them; leaving the blocks is the whole
shutdown.
"""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from ipaddress import ip_address
from typing import Final

import trio

from engine.backends.base import Backend
from engine.errors import BackendError, ServerError
from engine.hosted.base import Host
from engine.hosted.toolbox import Toolbox
from engine.keyfile import load_key
from engine.ledger import Ledger
from engine.responses import Responses
from engine.safety.lookout import Lookout
from engine.sealing import Sealer, new_key
from engine.server.contents import ContentRoutes
from engine.server.conversations import ConversationRoutes
from engine.server.exchange import Answer, Request, error_answer
from engine.server.heartbeat import Heart
from engine.server.http import serve_http
from engine.server.routes import Routes, Service
from engine.server.runs import RunRoutes
from engine.server.websocket import serve_websocket
from engine.settings import Settings
from engine.sqlite_ledger import open_ledger
from engine.sqlite_store import open_store
from engine.store import Store

_KEY_FILE: Final = "sealing.key"

log = logging.getLogger(__name__)


class App:
    """The parts of a running server."""

    def __init__(
        self,
        responses: Responses,
        settings: Settings,
        lookout: Lookout | None = None,
        store: Store | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.responses = responses
        self._lookout = lookout
        self._kept = {"store": store, "ledger": ledger}
        self._settings = settings
        self._closing = trio.Event()
        self.heart = Heart()
        self._num_connections = 0
        rows = [*RunRoutes(responses, settings).rows(), *ContentRoutes(responses).rows()]
        if responses.conversations is not None:
            rows += ConversationRoutes(responses.conversations, settings).rows()
        self._routes = Routes(self.service, settings, rows)
        self._upgrade = partial(serve_websocket, responses=responses, settings=settings, heart=self.heart)

    def service(self) -> Service:
        """What the plain HTTP routes show."""
        backend = self.responses.backend
        return Service(tuple(backend.models()), lambda name: backend.resolve(name).id, self._unready())

    def _unready(self) -> str | None:
        if self.responses.is_draining:
            return "draining"
        backend = self.responses.backend
        if not backend.is_ready:
            absent = [f"{one.id} is not available, {one.unavailable}" for one in backend.models() if one.unavailable]
            return absent[0] if absent else "the model is loading"
        if self._lookout is not None and not self._lookout.is_ready:
            return "a classifier is loading"
        failures = {name: kept.failure for name, kept in self._kept.items() if kept is not None}
        return next((f"the {name} cannot write: {failure}" for name, failure in failures.items() if failure), None)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """One connection, from its first byte to its end. Never raises but Cancelled."""
        is_full = self._num_connections >= self._settings.max_connections
        self._num_connections += 1
        try:
            route = self._refuse if is_full else self._routes
            await serve_http(stream, self._settings, route, self._upgrade, self._closing)
        except Exception:
            log.exception("connection failed")
        finally:
            self._num_connections -= 1

    async def _refuse(self, request: Request) -> Answer:
        message = f"More than {self._settings.max_connections} connections."
        error = ServerError(message, code="server_is_overloaded", status=503)
        return error_answer(error, ("connection", "close"))

    async def drain(self) -> None:
        """Finish the runs, then let every connection flush and close."""
        await self.responses.drain()
        self._closing.set()
        self.heart.stop()


@asynccontextmanager
async def open_app(
    backend: Backend,
    settings: Settings,
    key: bytes | None = None,
    store: Store | None = None,
    ledger: Ledger | None = None,
    lookout: Lookout | None = None,
    hosts: Mapping[str, Host] | None = None,
) -> AsyncIterator[App]:
    """A server without a listener; tests give it streams of their own.

    key: what it seals with; without one, what it has sealed is lost with it. store: without one it keeps nothing.
    ledger: without one it counts nothing. lookout: without one nothing is looked at. hosts: of the tools that it runs
    itself, by their wire types.
    """
    async with trio.open_nursery() as runs:
        toolbox = Toolbox(hosts, settings, lookout) if hosts else None
        responses = Responses(backend, settings, runs, Sealer(key or new_key()), store, ledger, lookout, toolbox)
        app = App(responses, settings, lookout, store, ledger)
        runs.start_soon(app.heart.run)
        yield app
        runs.cancel_scope.cancel("the server stops")


async def serve(
    open_backend: AbstractAsyncContextManager[Backend],
    settings: Settings,
    *,
    on_listening: Callable[[int], None],
    on_ready: Callable[[BackendError | None], None],
    on_hangup: Callable[[Backend], Awaitable[None]] | None = None,
    open_lookout: AbstractAsyncContextManager[Lookout | None] | None = None,
    open_hosts: AbstractAsyncContextManager[Mapping[str, Host]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or SIGHUP where that means nothing else.

    on_listening: is told the port, once connections are taken. on_ready: is called when runs are sampled without
    waiting for a model to load, or with what has kept one from loading. on_hangup: is called on SIGHUP, once at a time.
    open_lookout: what looks at inputs and outputs. open_hosts: the hosted tools.
    Raises ValueError for a host that is not loopback without `allow_remote`, OSError when the port is taken,
    KeyFileError, StoreUnusable, LedgerUnusable.
    """
    _check_host(settings)
    key = await trio.to_thread.run_sync(load_key, settings.data_dir / _KEY_FILE)
    async with (
        open_ledger(settings) as ledger,
        open_store(settings) as store,
        open_backend as backend,
        open_lookout or nullcontext() as lookout,
        open_hosts or nullcontext({}) as hosts,
        open_app(backend, settings, key, store, ledger, lookout, hosts) as app,
    ):
        listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
        async with trio.open_nursery() as connections:
            listening = await connections.start(_listen, listeners, app, connections)
            with trio.open_signal_receiver(*_ends(on_hangup)) as signals:
                async with trio.open_nursery() as loading:
                    if on_hangup is not None:
                        await loading.start(_obey_hangups, backend, on_hangup)
                    on_listening(listeners[0].socket.getsockname()[1])
                    loading.start_soon(_report_ready, backend, lookout, on_ready)
                    await _wait_for(signals)
                    loading.cancel_scope.cancel("the server stops")
                listening.cancel("the server stops")
                async with trio.open_nursery() as stopping:
                    stopping.start_soon(_cut_short, signals, connections.cancel_scope, stopping.cancel_scope)
                    await app.drain()
                    stopping.cancel_scope.cancel("drained")


async def _report_ready(
    backend: Backend, lookout: Lookout | None, on_ready: Callable[[BackendError | None], None]
) -> None:
    try:
        await backend.wait_ready()
        if lookout is not None:
            await lookout.wait_ready()
    except BackendError as error:
        on_ready(error)
    else:
        on_ready(None)


async def _obey_hangups(
    backend: Backend, on_hangup: Callable[[Backend], Awaitable[None]], *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as hangups:
        task_status.started()
        async for _ in hangups:
            await on_hangup(backend)


async def _cut_short(signals: AsyncIterator[int], connections: trio.CancelScope, draining: trio.CancelScope) -> None:
    """A second signal: wait for nothing more. Connections still close properly, within their own limit."""
    await _wait_for(signals)
    connections.cancel("told twice to stop")
    draining.cancel("told twice to stop")


async def _listen(
    listeners: list[trio.SocketListener],
    app: App,
    connections: trio.Nursery,
    *,
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    with trio.CancelScope() as scope:
        serve_all = partial(
            trio.serve_listeners,
            app.serve_stream,
            listeners,
            handler_nursery=connections,  # they outlive the listener
        )
        task_status.started(scope)
        await serve_all()


def _ends(on_hangup: object) -> list[signal.Signals]:
    """The signals that stop the server. A terminal that goes away sends SIGHUP, which `nohup` has us ignore."""
    heeds_hangups = on_hangup is None and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT] + ([signal.SIGHUP] if heeds_hangups else [])


async def _wait_for(signals: AsyncIterator[int]) -> None:
    async for number in signals:
        log.info("received %s", signal.Signals(number).name)
        return


def _check_host(settings: Settings) -> None:
    if settings.allow_remote or settings.host == "localhost":
        return
    try:
        is_loopback = ip_address(settings.host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(f"{settings.host} is not a loopback address; add --allow-remote to serve others.")
