"""router.py and routed_sequence.py: several backends as one, replaced while their sequences are in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from engine.backends.base import Backend, RunSpec, StepEnd, StepSpec, TextDelta
from engine.backends.router import Router, open_router
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.errors import BackendError, NotFound
from engine.items import Message
from engine.settings import Settings
from tests.served import TWO_CALLS, Client, Served, open_served, pending


class Slow(ScriptBackend):
    """A backend that is ready, or has failed to be, only when it is told."""

    def __init__(self, name: str) -> None:
        super().__init__([parse_scenario(f"model: inner\nsteps:\n- text: I am {name}.")])
        self.loaded = trio.Event()
        self.fails = False

    @property
    def is_ready(self) -> bool:
        return self.loaded.is_set()

    async def wait_ready(self) -> None:
        await self.loaded.wait()
        if self.fails:
            raise BackendError("The model could not be loaded.")


class Opener:
    """Opens a backend for each scenario's name, once told to be there; remembers what is open."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        self.backends: dict[str, Slow] = {}
        self.open: list[str] = []

    def __call__(self, settings: Settings) -> Any:
        name = settings.backend.removeprefix("script:")
        if name == "broken":
            raise ValueError("there is no scenario broken")
        return self._opened(name)

    @asynccontextmanager
    async def _opened(self, name: str) -> AsyncIterator[Backend]:
        backend = self.backends[name] = Slow(name)
        if not self.is_slow:
            backend.loaded.set()
        self.open.append(name)
        yield backend
        self.open.remove(name)


def models(**scenarios: str) -> Settings:
    """A model by each name that plays the scenario."""
    return Settings.model_validate({"models": {name: {"backend": f"script:{of}"} for name, of in scenarios.items()}})


@asynccontextmanager
async def opened(settings: Settings, opener: Opener) -> AsyncIterator[Router]:
    with trio.fail_after(20):
        async with open_router(settings, opener) as router:
            yield router


async def say(router: Router, model: str | None) -> str:
    """What a run with this model says."""
    sequence = router.open_sequence(RunSpec(response_id="r", model=router.resolve(model).id))
    sequence.commit(await sequence.prepare([Message(role="user", content="who are you?")]))
    sequence.start_step(StepSpec())
    text = ""
    while True:
        for delta in await sequence.next_deltas():
            if isinstance(delta, TextDelta):
                text += delta.text
            elif isinstance(delta, StepEnd):
                sequence.close()
                return text


async def test_each_model_is_sampled_by_its_own_backend() -> None:
    opener = Opener()
    async with opened(models(a="one", b="two", c="one"), opener) as router:
        assert [await say(router, model) for model in ("a", "script:b", "c", None)] == [
            "I am one.",
            "I am two.",
            "I am one.",
            "I am one.",
        ]
        assert [model.id for model in router.models()] == ["script:a", "script:b", "script:c"]
        assert {model.owned_by for model in router.models()} == {"script"}
        assert opener.open == ["one", "two"]  # a and c share theirs
        with pytest.raises(NotFound):
            router.resolve("inner")  # what a backend calls its model is its own business
    assert opener.open == []


async def test_it_is_ready_when_all_are() -> None:
    opener = Opener(is_slow=True)
    async with opened(models(a="one", b="two"), opener) as router:
        opener.backends["one"].loaded.set()
        assert not router.is_ready
        opener.backends["two"].loaded.set()
        assert router.is_ready
        await router.wait_ready()


async def test_backend_that_cannot_be_loaded_is_heard_by_who_waits() -> None:
    opener = Opener(is_slow=True)
    async with opened(models(a="one"), opener) as router:
        opener.backends["one"].fails = True
        opener.backends["one"].loaded.set()
        with pytest.raises(BackendError):
            await router.wait_ready()


async def test_what_cannot_be_opened_keeps_it_from_starting() -> None:
    opener = Opener()
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no scenario broken")):
        async with open_router(models(a="one", b="broken"), opener):
            pytest.fail("it opened")
    assert opener.open == []


# --- reading the settings again ------------------------------------------------------------------------------------


async def test_load_adds_keeps_and_removes() -> None:
    opener = Opener()
    async with opened(models(a="one", b="two"), opener) as router:
        kept = opener.backends["two"]
        await router.load(models(b="two", c="three"))
        assert [model.id for model in router.models()] == ["script:b", "script:c"]
        assert router.resolve(None).id == "script:b"
        assert opener.backends["two"] is kept
        while opener.open != ["two", "three"]:
            await trio.lowlevel.checkpoint()
        with pytest.raises(NotFound):
            router.resolve("a")
        with pytest.raises(NotFound):
            router.open_sequence(RunSpec(response_id="r", model="script:a"))  # resolved before, opened after


async def test_backend_in_use_is_closed_when_its_last_sequence_is() -> None:
    opener = Opener()
    async with opened(models(a="one"), opener) as router:
        sequence = router.open_sequence(RunSpec(response_id="r", model="script:a"))
        fork = sequence.fork("s")
        await router.load(models(a="two"))
        sequence.close()
        sequence.close()
        await trio.testing.wait_all_tasks_blocked()
        assert opener.open == ["one", "two"]
        assert await say(router, "a") == "I am two."
        fork.close()
        while opener.open != ["two"]:
            await trio.lowlevel.checkpoint()


async def test_until_all_is_ready_the_models_are_the_old_ones() -> None:
    opener = Opener(is_slow=True)
    async with opened(models(a="one"), opener) as router:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.load, models(a="two"))
            while "two" not in opener.backends:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert await say(router, "a") == "I am one."
            opener.backends["two"].loaded.set()
        assert await say(router, "a") == "I am two."


@pytest.mark.parametrize("fault", ["cannot be opened", "cannot be loaded", "share a name", "are none"])
async def test_load_that_fails_changes_nothing(fault: str) -> None:
    opener = Opener(is_slow=fault == "cannot be loaded")
    async with opened(models(a="one"), opener) as router:
        settings = {
            "cannot be opened": models(a="two", b="broken"),
            "cannot be loaded": models(a="two"),
            "share a name": Settings.model_validate({"models": {"a": {"aliases": ["x"]}, "b": {"aliases": ["x"]}}}),
            "are none": Settings(),
        }[fault]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail_when_opened, opener)
            with pytest.raises((ValueError, BackendError)):
                await router.load(settings)
            nursery.cancel_scope.cancel()
        assert await say(router, "a") == "I am one."
        while opener.open != ["one"]:
            await trio.lowlevel.checkpoint()


async def _fail_when_opened(opener: Opener) -> None:
    while "two" not in opener.backends:
        await trio.lowlevel.checkpoint()
    opener.backends["two"].fails = True
    opener.backends["two"].loaded.set()


async def test_leaving_closes_also_what_is_still_in_use() -> None:
    opener = Opener()
    async with opened(models(a="one"), opener) as router:
        router.open_sequence(RunSpec(response_id="r", model="script:a"))
        await router.load(models(a="two"))
    assert opener.open == []


# --- in a server ---------------------------------------------------------------------------------------------------


def serving(**models: Any) -> Settings:
    return Settings.model_validate({"models": {name: {"backend": "script:x"} | of for name, of in models.items()}})


@asynccontextmanager
async def open_script(settings: Settings) -> AsyncIterator[Backend]:
    yield ScriptBackend([parse_scenario(TWO_CALLS)])


@asynccontextmanager
async def open_serving(settings: Settings, opener: Any = open_script) -> AsyncIterator[tuple[Router, Served, Client]]:
    async with (
        open_router(settings, opener) as router,
        open_served(backend=router) as server,
        server.connect() as client,
    ):
        yield router, server, client


async def test_response_has_the_id_whatever_name_was_asked_for() -> None:
    """P100: over both transports."""
    async with open_serving(serving(a={}, b={"aliases": ["gpt-5"]})) as (_, server, client):
        listed = await server.http().ask("GET", "/v1/models")
        assert [model["id"] for model in listed.json["data"]] == ["script:a", "script:b"]
        assert (await server.http().ask("GET", "/v1/models/gpt-5")).json["id"] == "script:b"
        for asked, model in [("gpt-5", "script:b"), ("b", "script:b"), (None, "script:a")]:
            await client.create(model=asked)
            frames = await client.step()
            assert frames[0]["response"]["model"] == model
            reply = await server.http().create(model=asked)
            assert reply.json["model"] == model
        await client.create(model="c")
        assert [(frame["type"], frame["error"]["code"]) for frame in await client.step()] == [
            ("error", "model_not_found")
        ]
        reply = await server.http().create(model="c")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_defaults_and_limits_hold_per_model() -> None:
    """P101"""
    models = serving(a={"max_output_tokens": 500, "max_runs": 1, "defaults": {"temperature": 0.25}}, b={})
    async with open_serving(models) as (_, server, client):
        await client.create()
        created = (await client.step())[0]["response"]
        assert (created["temperature"], created["max_output_tokens"]) == (0.25, 500)
        await client.create(max_output_tokens=501, stream_id="x")
        refused = (await client.step())[-1]["error"]
        assert (refused["code"], refused["param"]) == ("invalid_value", "max_output_tokens")
        await client.create(stream_id="x")
        assert (await client.step())[-1]["error"]["code"] == "rate_limit_exceeded"
        reply = await server.http().create(model="a")
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        await client.create(stream_id="x", model="b")
        assert (await client.step())[0]["response"]["max_output_tokens"] is None


async def test_creates_that_are_prepared_at_once_do_not_pass_the_limit_together() -> None:
    """P101: what was admitted before it had to wait is looked at again when it starts."""
    settings = serving(a={"max_runs": 1})
    policies = [{"name": "keys", "kind": "secrets"}]  # looking at a long text takes turns
    async with open_router(settings, open_script) as router, open_served(backend=router, policies=policies) as server:
        statuses: list[int] = []

        async def create() -> None:
            reply = await server.http().create(input="word " * 50_000)
            statuses.append(reply.status)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(create)
        assert sorted(statuses) == [200, 429, 429]


async def test_time_of_routing_is_told() -> None:
    """P32"""
    async with open_served() as server, server.connect() as client:
        await client.create()
        step = (await client.step())[-1]["response"]["timing"]["step"]
        assert 0 < step["route_ms"] < 1000


async def test_run_goes_on_as_it_began_when_its_model_is_replaced() -> None:
    """P102"""
    scenario = parse_scenario(TWO_CALLS)
    other = parse_scenario("model: other\nsteps: [{text: Another model.}]")
    closed: list[str] = []

    @asynccontextmanager
    async def open_one(settings: Settings) -> AsyncIterator[Backend]:
        yield ScriptBackend([scenario if settings.backend == "script:x" else other])
        closed.append(settings.backend)

    async with open_serving(serving(a={}), open_one) as (router, _, client):
        await client.create()
        keys = pending(await client.step())
        await router.load(serving(a={"backend": "script:y", "max_output_tokens": 1}))
        await client.answer(*((key, "seen") for key in keys))
        ended = (await client.step())[-1]
        assert ended["response"]["output"][-1]["content"][0]["text"] == "Done with seen."
        assert ended["response"]["max_output_tokens"] is None
        await client.create()
        ended = (await client.step())[-1]["response"]
        assert (ended["max_output_tokens"], ended["output"][0]["content"][0]["text"]) == (1, "Anoth")
        while closed != ["script:x"]:
            await trio.lowlevel.checkpoint()
