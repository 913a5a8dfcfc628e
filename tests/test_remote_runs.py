"""Agent runs of twenty calls by the raw route on the contract server: every lifecycle, every encoding, every break.

`pytest -s tests/test_remote_runs.py -k bytes` prints what goes to the service in each turn.
`LONGLOOP_SOAK_CUTS=100000 pytest tests/test_remote_runs.py -k cut` cuts at every byte of the stream.
"""

import math
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.encoding import Encoding
from engine.store_fake import MemoryStore
from tests.agent_runs import LIFECYCLES, arguments, by_append
from tests.contract_answers import Answer, Dialect, problem
from tests.contract_server import ContractServer, Sent, open_contract_server
from tests.kept import as_of_now, paused_run, resume
from tests.remote_model import MODEL, open_raw, open_remote, saying, speaking
from tests.served import Client, open_served
from tests.tiny import HERMES, save_format

CALLS: Final = 20
SEEDS: Final = int(os.environ.get("LONGLOOP_SOAK_SEEDS", "6"))
CUTS: Final = int(os.environ.get("LONGLOOP_SOAK_CUTS", "50"))
DIALECTS: Final[list[Dialect]] = ["cerebras", "vllm", "llamacpp"]


@pytest.fixture(autouse=True)
async def _deadline() -> AsyncIterator[None]:
    with trio.fail_after(60 + CUTS):
        yield


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> PromptFormat:
    """A format whose context has room for the run."""
    return PromptFormat.load(save_format(tmp_path_factory.mktemp("format"), HERMES), context_window=1 << 20)


def turns(count: int = CALLS) -> list[str]:
    """What the model says in its turns: a call in each but the last."""
    call = '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>'
    return [*("I look. " + call % arguments(number) for number in range(count)), "Seen all, ä."]


def server_of(form: PromptFormat, count: int = CALLS, **fields: Any) -> ContractServer:
    return ContractServer(speaking(saying(form, *turns(count)), cached_tokens=40), models=(MODEL,), **fields)


# --- whole runs


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_twenty_calls_in_every_lifecycle(form: PromptFormat, lifecycle: str, dialect: Dialect) -> None:
    server = server_of(form, dialect=dialect)
    async with open_remote(server, form) as backend, open_served(backend=backend) as served:
        run = await LIFECYCLES[lifecycle](served)
    assert (run.num_calls, run.text, len(server.asked)) == (CALLS, "Seen all, ä.", CALLS + 1)
    prompts = [sent.body["prompt"] for sent in server.asked]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before, "the prompt only grows"
    if lifecycle != "inject":
        assert {usage["input_tokens_details"]["cached_tokens"] for usage in run.usages} == {40}
        assert [usage["input_tokens"] for usage in run.usages] == list(map(len, prompts))
    if lifecycle in ("append", "inject"):
        assert len({sent.connection for sent in server.asked}) == 1


@pytest.mark.parametrize("encoding", [Encoding(msgpack=m, gzip=g) for m in (False, True) for g in (False, True)])
async def test_bytes_of_a_turn_grow_by_what_is_new(form: PromptFormat, encoding: Encoding) -> None:
    server = server_of(form)
    async with open_remote(server, form, encoding=encoding) as backend, open_served(backend=backend) as served:
        await by_append(served)
    sizes = [len(sent.raw) for sent in server.asked]
    grown = [after - before for before, after in pairwise(sizes)]
    ids = [len(sent.body["prompt"]) for sent in server.asked]
    print(
        f"\n{encoding}: turns 1, 10, 21: {sizes[0]}, {sizes[9]}, {sizes[20]} bytes of {ids[0]}, {ids[9]}, {ids[20]} ids"
    )
    assert sum(grown[10:]) <= 1.1 * sum(grown[:10]), "what a turn adds does not depend on how much there is"


async def test_the_client_s_token_log_is_what_was_sent(form: PromptFormat) -> None:
    server = server_of(form, 1)
    async with open_remote(server, form) as backend, open_served(backend=backend) as served, served.connect() as client:
        await client.create(include=["response.tokens"])
        first = await client.step()
        await client.answer((first[-1]["response"]["pending"][0]["answer_key"], "seen"))
        frames = [*first, *await client.step()]
    spans = [span for frame in frames if frame["type"] == "response.tokens" for span in frame["spans"]]
    ids = [token_id for span in spans for token_id in span["ids"]]
    for sent in server.asked:
        assert ids[: len(sent.body["prompt"])] == sent.body["prompt"]
    assert [span["sampled"] for span in spans] == [False, True, False, True]


async def test_times_reach_the_client(form: PromptFormat) -> None:
    server = server_of(form)
    async with open_remote(server, form) as backend, open_served(backend=backend) as served, served.connect() as client:
        await client.create()
        timing = (await client.step())[-1]["response"]["timing"]["step"]
    assert (timing["queue_ms"] >= 250, timing["prefill_ms"], timing["sampling_ms"]) == (True, 500, 1000)
    assert timing["tokens_reused"] == 40


async def test_a_client_that_leaves_ends_the_sampling_of_the_service(form: PromptFormat) -> None:
    answer = speaking(saying(form, *turns()), between_s=math.inf)
    server = ContractServer(answer, models=(MODEL,))
    async with open_remote(server, form) as backend, open_served(backend=backend) as served:
        async with served.connect() as client:
            await client.create()
            await client.until("response.output_text.delta")
        with trio.fail_after(5):
            await server.asked[0].ended.wait()
    assert server.asked[0].is_aborted


# --- breaks


@asynccontextmanager
async def open_client(url: str, server: ContractServer, form: PromptFormat, **config: Any) -> AsyncIterator[Client]:
    """A client of ours whose model is behind what is at this URL."""
    async with (
        open_raw(url, server, form, **config) as backend,
        open_served(backend=backend) as served,
        served.connect() as client,
    ):
        yield client


def said(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """The text and the arguments, as their deltas tell them."""
    text = "".join(frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta")
    return text, "".join(frame["delta"] for frame in frames if frame["type"].endswith("arguments.delta"))


async def first_step(server: ContractServer, form: PromptFormat) -> list[dict[str, Any]]:
    async with open_remote(server, form) as backend, open_served(backend=backend) as served, served.connect() as client:
        await client.create()
        return await client.step()


async def test_wherever_the_service_is_cut_off_the_client_has_no_gap_and_no_repeat(form: PromptFormat) -> None:
    answer = speaking(saying(form, *turns()))
    await first_step(whole := ContractServer(answer, models=(MODEL,)), form)
    total = whole.asked[0].num_answered_bytes
    for cut in range(0, total, max(total // CUTS, 1)):
        cuts = iter([cut])

        def cut_once(sent: Sent, cuts: Any = cuts) -> Answer:
            return replace(answer(sent), cut_after=next(cuts, None))

        frames = await first_step(ContractServer(cut_once, models=(MODEL,)), form)
        assert frames[-1]["type"] == "response.done", cut
        assert said(frames) == ("I look. ", arguments(0)), cut


async def test_every_step_of_a_run_may_be_cut(form: PromptFormat) -> None:
    answer = speaking(saying(form, *turns()))

    def cut_often(sent: Sent) -> Answer:
        number = len(server.asked)
        return replace(answer(sent), cut_after=900 + 97 * number if number % 2 else None)

    server = ContractServer(cut_often, models=(MODEL,))
    async with open_remote(server, form) as backend, open_served(backend=backend) as served:
        run = await by_append(served)
    assert (run.num_calls, run.text) == (CALLS, "Seen all, ä.")
    assert len(server.asked) > CALLS + 10


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_mix_of_faults_leaves_the_run_whole(form: PromptFormat, seed: int, autojump_clock: MockClock) -> None:
    rng, answer = random.Random(seed), speaking(saying(form, *turns()))

    def faulty(sent: Sent) -> Answer:
        whole = replace(answer(sent), slice_bytes=rng.choice([None, None, 7, 100]))
        match rng.randrange(8):
            case 0:
                return replace(whole, cut_after=rng.randrange(6000))
            case 1:
                return Answer(status=503, error=problem("busy", "queue_exceeded"), headers={"retry-after-ms": "0"})
            case 2:
                begun = rng.randrange(len(whole.pieces) + 1)
                return replace(whole, pieces=whole.pieces[:begun], error=problem("boom", "server_error"))
            case 3:
                return replace(whole, pieces=whole.pieces[: rng.randrange(len(whole.pieces) + 1)], has_end=False)
        return whole

    dialect, lifecycle = rng.choice(DIALECTS), rng.choice(list(LIFECYCLES))
    server = ContractServer(faulty, models=(MODEL,), dialect=dialect)
    async with open_remote(server, form, retries=20) as backend, open_served(backend=backend) as served:
        run = await LIFECYCLES[lifecycle](served)
    assert (run.num_calls, run.text) == (CALLS, "Seen all, ä.")
    if lifecycle != "stateless":  # which renders what was said anew
        prompts = [sent.body["prompt"] for sent in server.asked]
        assert all(after[: len(before)] == before for before, after in pairwise(prompts))


async def test_a_run_goes_on_when_the_service_was_killed_in_a_pause_and_started_again(form: PromptFormat) -> None:
    server = server_of(form, 1)
    async with open_contract_server(server) as url:
        port = int(url.rpartition(":")[2])
    async with open_client(url, server, form) as client:
        async with open_contract_server(server, port):
            await client.create()
            done = (await client.step())[-1]["response"]
        await client.answer((done["pending"][0]["answer_key"], "seen"))
        async with open_contract_server(server, port):
            frames = await client.step()
    assert frames[-1]["type"] == "response.completed"
    assert said(frames)[0] == "Seen all, ä."


@asynccontextmanager
async def open_kept(server: ContractServer, form: PromptFormat, store: MemoryStore) -> AsyncIterator[Client]:
    """A client of one of several servers in a row, over the same service."""
    async with (
        open_remote(server, form) as backend,
        open_served(backend=backend, store=store) as served,
        served.connect() as client,
    ):
        yield client


async def test_a_paused_run_goes_on_in_another_server_token_for_token(form: PromptFormat) -> None:  # P82
    server, store = server_of(form, 2), MemoryStore()
    async with open_kept(server, form, store) as client:
        response_id, (key,), before = await paused_run(client)
        killed = as_of_now(store)
    async with open_kept(server, form, killed) as client:
        await resume(client, response_id, before[-1]["sequence_number"])
        await client.answer((key, "seen"))
        assert said(await client.step())[1] == arguments(1)
    first, second = (sent.body["prompt"] for sent in server.asked)
    assert second[: len(first)] == first


async def test_a_service_that_stays_away_fails_the_run_cleanly(form: PromptFormat) -> None:
    server = server_of(form, 1)
    async with open_contract_server(server) as url:
        pass
    async with open_client(url, server, form, retries=0) as client:
        await client.create()
        frames = await client.step()
    assert frames[-1]["type"] == "response.failed"
    assert frames[-1]["response"]["error"]["code"] == "server_error"
