"""awaited.py: a service that is not there when the server starts, alone and beside other models."""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Any

import pytest
import trio
import trio.testing

from engine.backends.base import Backend, ModelInfo, RunSpec
from engine.backends.remote.awaited import growing_waits, open_awaited
from engine.backends.remote.services import NotThere, NotUsable
from engine.backends.router import Router
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.commands.backend import choose_backend
from engine.errors import BackendError, EngineError
from engine.settings import Settings, load
from tests.contract_answers import Answer, Piece
from tests.contract_server import ContractServer, open_contract_server
from tests.remote_peer import Asked, open_peer, refusal
from tests.served import Served, open_served

STAND_IN = ModelInfo("far", 0, "vLLM", unavailable="its service is not there")
DOWN = NotThere("vLLM cannot be reached.")
SETTINGS = Settings(upstream_connect_s=5, upstream_retry_s=2, max_upstream_retry_s=6)


class Service:
    """Is asked; fails with each of these first, or hangs where there is None, and is there then."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.asked_at: list[float] = []
        self.is_open = False

    async def ask(self) -> AbstractAsyncContextManager[Backend]:
        self.asked_at.append(trio.current_time())
        if not self.failures:
            return self._open()
        if (failure := self.failures.pop(0)) is None:
            await trio.sleep_forever()
        assert failure is not None
        raise failure

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Backend]:
        self.is_open = True
        try:
            yield ScriptBackend([parse_scenario("model: real\nsteps: [{text: Hello.}]")])
        finally:
            self.is_open = False


@pytest.mark.parametrize(
    ("first", "longest", "waits"), [(1, 60, [1, 2, 4, 8]), (2, 5, [2, 4, 5, 5]), (9, 3, [3, 3, 3, 3])]
)
def test_waits_grow_up_to_a_limit(first: float, longest: float, waits: list[float]) -> None:
    assert list(islice(growing_waits(first, longest), 4)) == waits


async def test_one_that_is_there_is_itself(autojump_clock: Any) -> None:
    service = Service()
    async with open_awaited(service.ask, STAND_IN, SETTINGS) as backend:
        assert isinstance(backend, ScriptBackend)
    assert not service.is_open


async def test_one_that_is_not_there_is_asked_again_ever_more_rarely_and_then_used(autojump_clock: Any) -> None:
    service = Service(*[DOWN] * 5)
    began = trio.current_time()
    async with open_awaited(service.ask, STAND_IN, SETTINGS) as backend:
        assert not backend.is_ready
        assert backend.models() == [STAND_IN]
        assert backend.rate_limits("far") == ()
        await backend.wait_ready()
        assert [time - began for time in service.asked_at] == [0, 2, 6, 12, 18, 24]
        assert backend.is_ready
        assert [model.id for model in backend.models()] == ["script:real"]
        assert backend.resolve(None).id == "script:real"
        assert backend.rate_limits("script:real") == ()
        backend.open_sequence(RunSpec(response_id="r", model="script:real")).close()
    assert not service.is_open


async def test_until_then_a_run_is_refused_with_503_and_the_models_name(autojump_clock: Any) -> None:
    async with open_awaited(Service(DOWN).ask, STAND_IN, SETTINGS) as backend:
        assert backend.resolve(None).id == backend.resolve("far").id == "far"
        refusals = []
        for refused in (
            lambda: backend.resolve("other"),
            lambda: backend.open_sequence(RunSpec(response_id="r", model="far")),
        ):
            with pytest.raises(EngineError) as caught:
                refused()
            refusals.append((caught.value.status, caught.value.code, caught.value.message.split(":")[0]))
        assert refusals == [
            (503, "server_error", "The model 'other' is not available"),
            (503, "server_error", "The model 'far' is not available"),
        ]


async def test_one_that_says_nothing_delays_no_start(autojump_clock: Any) -> None:
    began = trio.current_time()
    async with open_awaited(Service(None).ask, STAND_IN, SETTINGS) as backend:
        assert trio.current_time() - began == SETTINGS.upstream_connect_s
        await backend.wait_ready()


async def test_what_will_not_pass_keeps_the_server_from_starting() -> None:
    with pytest.raises(NotUsable, match="refuses the key"):
        async with open_awaited(Service(NotUsable("vLLM refuses the key.")).ask, STAND_IN, SETTINGS):
            pytest.fail("it opened")


async def test_what_is_wrong_later_is_in_the_log_once(autojump_clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    wrong = NotUsable("vLLM refuses the key.")
    with caplog.at_level(logging.INFO):
        async with open_awaited(Service(DOWN, wrong, wrong, DOWN).ask, STAND_IN, SETTINGS) as backend:
            await backend.wait_ready()
    assert [record.getMessage() for record in caplog.records] == [
        "vLLM cannot be reached. It is asked again until it is there.",
        "vLLM refuses the key.",
        "vLLM cannot be reached.",
        "the service of far is there now",
    ]


# --- a server ------------------------------------------------------------------------------------------------------


def settings(port: int, **more: Any) -> dict[str, Any]:
    return {"backend": "vllm", "base_url": f"http://127.0.0.1:{port}", "model": "m", **more}


@asynccontextmanager
async def serving(**chosen: Any) -> AsyncIterator[tuple[Served, Backend]]:
    """A server as `longloop serve` makes it."""
    options = load(**chosen, upstream_retry_s=0.01, max_upstream_retry_s=0.05)
    with trio.fail_after(30):
        async with (
            choose_backend(options, lambda what, fraction: None, awaits=True) as backend,
            open_served(backend=backend, lifecycle="chain") as server,
        ):
            yield server, backend


async def free_port() -> int:
    async with open_peer() as peer:
        return peer.port


def service() -> ContractServer:
    return ContractServer(lambda _: Answer(pieces=[Piece("Hello.", ())]), dialect="vllm", models=("m",))


async def test_alone_it_keeps_the_server_from_being_ready_until_it_is_there() -> None:
    port = await free_port()
    async with serving(**settings(port)) as (server, backend):
        ready = await server.http().get("/readyz")
        assert (ready.status, ready.error["message"]) == (
            503,
            "Not ready: m is not available, its service is not there",
        )
        refused = await server.http().create()
        assert (refused.status, refused.error["param"]) == (503, "model")
        async with open_contract_server(service(), port):
            await backend.wait_ready()
            assert (await server.http().get("/readyz")).json == {"status": "ready"}
            assert (await server.http().create()).json["status"] == "completed"


async def test_beside_others_only_its_own_runs_are_refused() -> None:  # P3
    port = await free_port()
    models = {"far": settings(port), "near": {"backend": "script:demo"}}
    async with serving(models=models) as (server, backend):
        await backend.wait_ready()
        assert (await server.http().get("/readyz")).json == {"status": "ready", "unavailable": ["far"]}
        listed = {model["id"]: model for model in (await server.http().get("/v1/models")).json["data"]}
        assert listed["far"]["unavailable"] == "its service is not there"
        assert "unavailable" not in listed["script:near"]
        assert (await server.http().get("/v1/models/far")).json["unavailable"] == "its service is not there"
        assert (await server.http().create(model="near")).json["status"] == "completed"
        async with server.connect() as client:
            await client.create(model="far")
            refused = await client.receive()
        assert (refused["status"], refused["error"]["code"]) == (503, "server_error")
        assert "'far'" in refused["error"]["message"]
        async with open_contract_server(service(), port):
            while (await server.http().get("/readyz")).json != {"status": "ready"}:
                await trio.testing.wait_all_tasks_blocked()
            assert (await server.http().create(model="far")).json["status"] == "completed"


async def test_a_server_of_none_but_such_is_ready_with_the_first() -> None:
    dead, port = await free_port(), await free_port()
    async with serving(models={"a": settings(dead), "b": settings(port)}) as (server, backend):
        assert not backend.is_ready
        async with open_contract_server(service(), port):
            await backend.wait_ready()
            assert (await server.http().get("/readyz")).json == {"status": "ready", "unavailable": ["a"]}


async def test_it_is_not_taken_in_when_the_models_are_read_again() -> None:
    port = await free_port()
    async with serving(models={"near": {"backend": "script:demo"}}) as (_, backend):
        assert isinstance(backend, Router)
        with pytest.raises(BackendError, match="its service is not there"):
            await backend.load(load(models={"far": settings(port)}))
        assert [model.id for model in backend.models()] == ["script:near"]


@pytest.mark.parametrize(("status", "is_waited_for"), [(503, True), (429, True), (401, False), (403, False)])
async def test_what_the_service_answers_says_whether_it_is_waited_for(status: int, is_waited_for: bool) -> None:
    def answer(asked: Asked) -> Any:
        return refusal(status)

    async with open_peer(answer) as peer:
        if is_waited_for:
            async with serving(**settings(peer.port)) as (_, backend):
                assert not backend.is_ready
        else:
            with pytest.raises(NotUsable):
                async with serving(**settings(peer.port)):
                    pytest.fail("it opened")
