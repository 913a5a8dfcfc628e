"""Agent runs of twenty calls by the chat route on the contract server: every lifecycle, every encoding.

`pytest -s tests/test_chat_runs.py -k bytes` prints what goes to the service in each turn.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

import pytest
import trio

from engine.backends.remote.encoding import Encoding
from engine.store_fake import MemoryStore
from tests.agent_runs import LIFECYCLES, arguments, by_append
from tests.chat_route import open_chat
from tests.contract_answers import Answer, CallShape, called, problem, said, thought
from tests.contract_server import ContractServer, Sent
from tests.kept import as_of_now, paused_run, resume
from tests.served import Client, open_served, pending

CALLS: Final = 20
_SHAPES: Final[list[CallShape]] = ["whole", "split", "no_index", "no_id", "bare"]


@pytest.fixture(autouse=True)
async def _deadline() -> AsyncIterator[None]:
    with trio.fail_after(30):
        yield


@asynccontextmanager
async def open_client(
    server: ContractServer, store: MemoryStore | None = None, **settings: Any
) -> AsyncIterator[Client]:
    """A client of ours whose model is behind this server."""
    async with (
        open_chat(server) as backend,
        open_served(backend=backend, store=store, **settings) as served,
        served.connect() as client,
    ):
        yield client


def look_around(sent: Sent) -> Answer:
    """Calls until twenty outputs are there, each time in another shape."""
    number = sum(message["role"] == "tool" for message in sent.body["messages"])
    if number == CALLS:
        return Answer(deltas=said("Seen", " all."), prompt_tokens=150 * (number + 1), cached_tokens=100 * number)
    call = called("look", arguments(number), call_id=f"call_{number}", shape=_SHAPES[number % len(_SHAPES)])
    deltas = [*thought("Next."), *said("I look."), *call]
    return Answer(deltas=deltas, prompt_tokens=150 * (number + 1), cached_tokens=100 * number)


def check_history(server: ContractServer) -> None:
    """Each turn was asked for with the messages of the one before and what is new; outputs name their calls."""
    bodies = [sent.body for sent in server.asked]
    for before, after in pairwise(bodies):
        length = len(before["messages"])
        assert after["messages"][:length] == before["messages"]
        (said_then, output) = after["messages"][length:]
        assert said_then["content"] == "I look." and said_then["reasoning"] == "Next."
        (call,) = said_then["tool_calls"]
        assert output == {
            "role": "tool",
            "content": f"seen {call['function']['arguments']}",
            "tool_call_id": call["id"],
        }
    last = [message["content"] for message in bodies[-1]["messages"] if message["role"] == "tool"]
    assert last == [f"seen {arguments(number)}" for number in range(CALLS)]


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_twenty_calls_in_every_lifecycle(lifecycle: str) -> None:
    server = ContractServer(look_around)
    async with open_chat(server) as backend, open_served(backend=backend) as served:
        run = await LIFECYCLES[lifecycle](served)
    assert (run.num_calls, run.text, len(server.asked)) == (CALLS, "Seen all.", CALLS + 1)
    check_history(server)
    if lifecycle != "inject":
        assert [usage["input_tokens_details"]["cached_tokens"] for usage in run.usages] == list(range(0, 2001, 100))
    if lifecycle in ("append", "inject", "chain"):
        assert len({sent.connection for sent in server.asked}) == 1


@pytest.mark.parametrize("encoding", [Encoding(msgpack=m, gzip=g) for m in (False, True) for g in (False, True)])
async def test_bytes_of_a_turn_grow_by_what_is_new(encoding: Encoding) -> None:
    server = ContractServer(look_around)
    async with open_chat(server, encoding=encoding) as backend, open_served(backend=backend) as served:
        await by_append(served)
    sizes = [len(sent.raw) for sent in server.asked]
    grown = [after - before for before, after in pairwise(sizes)]
    print(
        f"\n{encoding}: bytes of turns 1, 10, 21: {sizes[0]}, {sizes[9]}, {sizes[20]}; a turn adds {sorted(grown)[10]}"
    )
    assert max(grown[10:]) <= 1.1 * max(grown[:10]), "what a turn adds does not depend on how much there is"


async def test_times_and_reused_tokens_reach_the_client() -> None:
    async with open_client(ContractServer(look_around)) as client:
        await client.create()
        done = (await client.step())[-1]["response"]
    timing: Any = done["timing"]["step"]
    assert (timing["queue_ms"] >= 250, timing["prefill_ms"], timing["sampling_ms"]) == (True, 500, 1000)
    assert done["usage"]["input_tokens"] == 150


async def test_a_run_goes_on_when_the_service_was_away_during_a_pause() -> None:
    server = ContractServer(look_around)
    async with open_chat(server) as backend, open_served(backend=backend) as served, served.connect() as client:
        await client.create()
        done = (await client.step())[-1]["response"]
        await server.drop_all()
        await client.answer((done["pending"][0]["answer_key"], "seen"))
        assert (await client.step())[-1]["type"] == "response.done"


async def test_a_stored_run_goes_on_in_another_server() -> None:
    server, store = ContractServer(look_around), MemoryStore()
    async with open_client(server, store=store) as client:
        response_id, (key,), _ = await paused_run(client)
        killed = as_of_now(store)
    async with open_client(server, store=killed) as client:
        assert (await resume(client, response_id, -1))["status"] == "paused"
        await client.until("response.done")
        await client.answer((key, "seen"))
        assert (await client.until("response.done", "response.failed"))[-1]["type"] == "response.done"
    first, second = server.asked[0].body["messages"], server.asked[-1].body["messages"]
    made, output = second[len(first) :]
    assert second[: len(first)] == first and made["reasoning"] == "Next."
    assert made["tool_calls"][0]["id"] == output["tool_call_id"] == key


async def test_a_context_that_has_grown_too_long_is_summed_up_by_the_service() -> None:
    def look_or_sum_up(sent: Sent) -> Answer:
        last = sent.body["messages"][-1]
        if last["role"] == "system" and last["content"].startswith("Sum up"):
            return Answer(deltas=said("They look around."))
        return look_around(sent)

    server = ContractServer(look_or_sum_up)
    async with open_client(server) as client:
        await client.create(
            context_management=[{"type": "compaction", "compact_threshold": 1000}], instructions="Be kind."
        )
        await client.answer((pending(await client.step())[0], "word " * 1000))
        frames = await client.step()
    assert frames[-1]["type"] == "response.done"
    assert "response.compaction.compacting" in [frame["type"] for frame in frames]
    first, summary, after = (sent.body for sent in server.asked)
    assert summary["tool_choice"] == "none" and summary["messages"][: len(first["messages"])] == first["messages"]
    roles = [(message["role"], message["content"]) for message in after["messages"]]
    assert roles[:2] == [("system", "Be kind."), ("user", "go")] and roles[2][0] == "system"
    assert roles[2][1].endswith("They look around.") and len(roles) == 3


async def test_an_output_that_does_not_fit_is_refused_and_a_shorter_one_taken() -> None:  # P23
    server = ContractServer(look_around)
    async with (
        open_chat(server, window=1000) as backend,
        open_served(backend=backend) as served,
        served.connect() as client,
    ):
        await client.create()
        (key,) = pending(await client.step())
        await client.answer((key, "word " * 1000))
        assert (await client.step())[-1]["error"]["code"] == "context_length_exceeded"
        await client.answer((key, "word"))
        assert (await client.step())[-1]["type"] == "response.done"
    assert len(server.asked) == 2


async def test_what_the_user_says_meanwhile_steers_the_model() -> None:
    server = ContractServer([Answer(deltas=said(*"Once upon a"), between_s=0.05), Answer(deltas=said("Short."))])
    async with open_client(server, lifecycle="chain") as client:
        await client.create(tools=[])
        begun = await client.until("response.output_text.delta")
        await client.send("response.steer", previous_response_id=begun[0]["response"]["id"], input="Be short.")
        assert (await client.until("response.incomplete"))[-1]["response"]["incomplete_details"]["reason"] == "steered"
        assert (await client.until("response.completed"))[-1]["response"]["output"][0]["content"][0]["text"] == "Short."
    await server.asked[0].ended.wait()
    assert server.asked[0].is_aborted
    (asked, said_then, more) = server.asked[1].body["messages"]
    assert "Once upon a".startswith(said_then["content"]) and said_then["role"] == "assistant"
    assert (asked["content"], more["content"]) == ("go", "Be short.")


async def test_a_stream_that_breaks_after_words_have_gone_out_fails_the_run_once() -> None:
    answers = [Answer(deltas=said("Hel"), error=problem("boom at /srv/model.py", "server_error"))]
    async with open_client(ContractServer(answers)) as client:
        await client.create()
        frames = await client.step()
    assert [frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta"] == ["Hel"]
    assert frames[-1]["type"] == "response.failed"
    assert frames[-1]["response"]["error"]["code"] == "server_error"
    assert "/srv" not in frames[-1]["response"]["error"]["message"], "the service's own words are for the log"


async def test_a_service_under_load_tells_the_client_when_to_come_again() -> None:
    answers = [Answer(status=429, error=problem("queue", "queue_exceeded"), headers={"retry-after": "60"})]
    async with open_client(ContractServer(answers)) as client:
        await client.create()
        error = (await client.step())[-1]["response"]["error"]
    assert error["code"] == "rate_limit_exceeded" and "60s" in error["message"]


async def test_what_the_service_does_not_like_about_a_request_reaches_the_client() -> None:  # P66
    words = problem("'temperature' must be at most 1 here", "x", param="temperature")
    server = ContractServer([Answer(status=400, error=words)] * 2)
    told = {
        "type": "invalid_request_error",
        "code": "invalid_prompt",
        "message": "The model's service did not take the request. It says: 'temperature' must be at most 1 here",
        "param": "temperature",
    }
    async with open_chat(server) as backend, open_served(backend=backend) as served:
        async with served.connect() as client:
            await client.create(temperature=2)
            failed = (await client.step())[-1]
        assert (failed["type"], failed["response"]["error"]) == ("response.failed", told)
        *_, error, failed = await served.http().events(temperature=2)
        assert (error["type"], error["error"], failed["response"]["error"]) == ("error", told, told)


async def test_a_filter_of_the_service_has_no_policy_of_ours() -> None:
    async with open_client(ContractServer([Answer(deltas=said("a"), finish="content_filter")])) as client:
        await client.create()
        ended = (await client.step())[-1]
    assert (ended["type"], ended["response"]["incomplete_details"]) == (
        "response.incomplete",
        {"reason": "content_filter"},
    )
