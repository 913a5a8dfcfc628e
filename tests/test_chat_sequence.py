"""A run by the chat route on the contract server: what is sent, what comes, and what happens when it does not."""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from engine.backends.base import (
    CallDelta,
    CallEnd,
    CallStart,
    ModelInfo,
    Past,
    ReasoningDelta,
    StepEnd,
    StepSpec,
    TextDelta,
)
from engine.backends.remote.chat import open_chat_backend
from engine.backends.remote.chat_request import DIALECTS
from engine.backends.remote.chat_sequence import ChatSequence
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.link import Link, LinkConfig
from engine.errors import BackendError, NotFound
from engine.items import FunctionCallOutput
from tests.chat_route import MODEL, give, open_chat, sample, spec, text_of, user
from tests.contract_answers import Answer, Dialect, called, problem, queue_exceeded, said, thought
from tests.contract_server import ContractServer
from tests.remote_peer import Reply, event, open_peer, sse

HELLO = Answer(deltas=said("Hel", "lo"), prompt_tokens=40, cached_tokens=30, completion_tokens=2, reasoning_tokens=1)
CALLS = Answer(
    deltas=[*thought("hm"), *said("I look."), *called("look", '{"n":1}'), *called("look", '{"n":2}', shape="bare")]
)
LAST = StepSpec()
CUTS = int(os.environ.get("LONGLOOP_SOAK_CUTS", "50"))
FIVE = StepSpec(max_tokens=5)


@pytest.fixture(autouse=True)
async def _deadline() -> AsyncIterator[None]:
    with trio.fail_after(20 + CUTS):
        yield


@asynccontextmanager
async def open_run(server: ContractServer, *, config: Any = None, **fields: Any) -> AsyncIterator[ChatSequence]:
    """A run that has been greeted."""
    async with open_chat(server, **(config or {})) as backend:
        sequence = backend.open_sequence(spec(**fields))
        await give(sequence, user("hi"))
        yield sequence
        sequence.close()


async def test_a_step_is_sampled_and_accounted_for() -> None:
    server = ContractServer([HELLO], api_key="right")
    async with open_run(server, instructions="Be kind.", temperature=0.5) as run:
        deltas, end = await sample(run, StepSpec(max_tokens=9))
        assert deltas == [TextDelta("Hel"), TextDelta("lo")]
        usage, timing = end.usage, end.timing
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (40, 2, 42)
        assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (30, 1)
        assert (timing.queue_ms, timing.prefill_ms, timing.sampling_ms) == (250, 500, 1000)
        assert (timing.tokens_reused, timing.tokens_prefilled, timing.tokens_new > 0) == (30, 10, True)
        assert run.num_context_tokens == 42 and run.num_turn_tokens == 0 and run.tokens.total == 0
    (sent,) = server.asked
    assert sent.body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert sent.body | {"messages": 0, "tools": 0} == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "prompt_cache_key": "resp_1",
        "tool_choice": "auto",
        "tools": 0,
        "messages": 0,
    }
    (warmed,) = [one for one in server.sent if one.path == "/v1/tcp_warming" and one.connection == sent.connection]
    assert server.sent.index(warmed) < server.sent.index(sent)


async def test_a_run_goes_on_after_its_calls() -> None:
    server = ContractServer([CALLS, HELLO])
    async with open_run(server) as run:
        deltas, _ = await sample(run)
        assert deltas == [
            ReasoningDelta("hm"),
            TextDelta("I look."),
            *(CallStart("function_call", "look"), CallDelta('{"n":1}'), CallEnd()),
            *(CallStart("function_call", "look"), CallDelta('{"n":2}'), CallEnd()),
        ]
        outputs = [FunctionCallOutput(call_id=f"call_ours_{n}", output=f"seen {n}") for n in (1, 2)]
        await give(run, *outputs, user("and?"))
        assert text_of((await sample(run))[0]) == "Hello"
    first, second = (sent.body["messages"] for sent in server.asked)
    made = [
        {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
        for call_id, arguments in (("call_1", '{"n":1}'), ("call_2", '{"n":2}'))
    ]
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": made},
        {"role": "tool", "content": "seen 1", "tool_call_id": "call_1"},
        {"role": "tool", "content": "seen 2", "tool_call_id": "call_2"},
        {"role": "user", "content": "and?"},
    ]
    assert len({sent.connection for sent in server.asked}) == 1


@pytest.mark.parametrize(
    "encoding", [PLAIN, Encoding(msgpack=True), Encoding(gzip=True), Encoding(msgpack=True, gzip=True)]
)
async def test_messages_are_the_same_in_every_encoding(encoding: Encoding) -> None:
    server = ContractServer([HELLO, HELLO], context_window=1 << 30)
    async with open_run(server, config={"encoding": encoding}) as run:
        await sample(run)
        await give(run, user("ä" * 300_000))  # more than is encoded in between
        await sample(run)
    assert [len(sent.body["messages"]) for sent in server.asked] == [1, 3]
    assert server.asked[1].body["messages"][2]["content"] == "ä" * 300_000
    assert server.asked[1].headers["content-type"] == dict(encoding.headers)["Content-Type"]


async def test_a_service_that_takes_only_json_gets_it() -> None:
    server = ContractServer([HELLO, HELLO], encodings=())
    async with open_run(server, config={"encoding": Encoding(msgpack=True, gzip=True)}) as run:
        assert text_of((await sample(run))[0]) == "Hello"
        await give(run, user("again"))
        await sample(run)
    taken = [sent for sent in server.asked if sent.body is not None]
    assert len(server.asked) == 4 and [len(sent.body["messages"]) for sent in taken] == [1, 3]


@pytest.mark.parametrize(
    ("answer", "step", "reason"),
    [
        (Answer(deltas=said("a"), finish="length", completion_tokens=5), FIVE, "max_output_tokens"),
        (Answer(deltas=said("a"), finish="length", completion_tokens=4), FIVE, "context_length_exceeded"),
        (Answer(deltas=said("a"), finish="length"), LAST, "context_length_exceeded"),
        (Answer(deltas=said("a"), finish="content_filter"), LAST, "content_filter"),
        (Answer(deltas=said("a"), finish="eos"), LAST, "stop"),
        (Answer(finish="stop"), LAST, "stop"),
    ],
)  # fmt: skip
async def test_an_end_has_its_reason(answer: Answer, step: StepSpec, reason: str) -> None:
    async with open_run(ContractServer([answer])) as run:
        assert (await sample(run, step))[1].reason == reason


@pytest.mark.parametrize(
    "last",
    [
        Reply(
            [b'{"choices": [{"message": {"content": "all"}, "finish_reason": "stop"}]}'],
            headers={"content-type": "application/json"},
        ),
        Reply([b"\xef\xbb\xbf" + event({"choices": [{"delta": {"content": "all"}, "finish_reason": "stop"}]})]),
    ],
)
async def test_services_in_front_of_others_have_ways_of_their_own(last: Reply) -> None:
    """An error that is all of a chunk, or too deep to be read; an answer that is no stream; a byte order mark."""
    async with open_peer() as peer:
        deep = b'data: {"error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
        peer.replies = [Reply(sse({"object": "error", "message": "boom", "code": 500})), Reply([deep]), last]
        link = Link(LinkConfig(base_url=peer.url))
        async with open_chat_backend(link, DIALECTS["openai"], [ModelInfo(MODEL, 0)]) as backend:
            run = backend.open_sequence(spec())
            await give(run, user("hi"))
            assert text_of((await sample(run))[0]) == "all"
            run.close()


async def test_a_call_that_was_cut_is_not_answered_for() -> None:
    half = Answer(deltas=called("look", '{"n":1}', shape="split")[:4], finish="length")
    server = ContractServer([half, HELLO])
    async with open_run(server) as run:
        deltas, _ = await sample(run)
        assert not any(isinstance(delta, CallEnd) for delta in deltas)
        await give(run, user("go on"))
        await sample(run)
    assert [message["role"] for message in server.asked[1].body["messages"]] == ["user", "user"]


async def test_nothing_is_asked_for_when_nothing_may_come() -> None:
    server = ContractServer()
    async with open_run(server) as run:
        deltas, end = await sample(run, StepSpec(max_tokens=0))
    assert (deltas, end.reason, server.asked) == ([], "max_output_tokens", [])


async def test_what_a_service_does_not_count_is_estimated() -> None:
    async with open_run(ContractServer([Answer(deltas=said("x" * 40), times=None)], dialect="vllm")) as run:
        before = run.num_context_tokens
        _, end = await sample(run)
    assert before > 0 and end.usage.input_tokens > 0 and end.usage.output_tokens == 1
    assert end.timing.prefill_ms > 0


async def test_reasoning_that_a_service_does_not_count_is_its_share() -> None:
    answer = Answer(deltas=[*thought("x" * 30), *said("y" * 10)], completion_tokens=20)
    async with open_run(ContractServer([answer], dialect="llamacpp")) as run:
        _, end = await sample(run)
    assert (end.usage.output_tokens, end.usage.output_tokens_details.reasoning_tokens) == (20, 15)


async def test_llama_cpps_own_times_count() -> None:
    server = ContractServer([Answer(deltas=said("a"), cached_tokens=3, prompt_tokens=10)], dialect="llamacpp")
    async with open_run(server) as run:
        _, end = await sample(run)
    assert (end.timing.prefill_ms, end.timing.sampling_ms) == (500, 1000)
    assert (end.usage.input_tokens, end.timing.tokens_reused) == (10, 3)


HUGE, NEGATIVE = 10**30, -5


@pytest.mark.parametrize("number", [HUGE, NEGATIVE])
@pytest.mark.parametrize("dialect", ["cerebras", "llamacpp"])
async def test_what_can_be_no_count_does_not_count(number: int, dialect: Dialect) -> None:
    times = {"queue_time": -1e308, "prompt_time": 1e308, "completion_time": 1.0}
    answer = Answer(
        deltas=said("x" * 8),
        times=times,
        prompt_tokens=number,
        completion_tokens=number,
        cached_tokens=number if dialect == "cerebras" else 0,
        reasoning_tokens=number,
    )
    async with open_run(ContractServer([answer, HELLO], dialect=dialect)) as run:
        before = run.num_context_tokens
        _, end = await sample(run)
        assert (end.usage.input_tokens, end.usage.output_tokens) == (before, 2)
        assert (end.usage.input_tokens_details.cached_tokens, end.usage.output_tokens_details.reasoning_tokens) == (
            0,
            0,
        )
        assert (end.timing.queue_ms, end.timing.sampling_ms) == (0, 1000)
        assert 0 <= end.timing.prefill_ms < 1e6 and run.num_context_tokens == before + 2


async def test_no_more_is_reused_than_there_was() -> None:
    answer = Answer(deltas=said("a"), prompt_tokens=9, cached_tokens=20, completion_tokens=2, reasoning_tokens=30)
    async with open_run(ContractServer([answer])) as run:
        _, end = await sample(run)
    assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (9, 0)
    assert end.usage.output_tokens_details.reasoning_tokens == 2


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        Answer(status=429, error=queue_exceeded(), headers={"retry-after": "0"}),
        Answer(status=503, headers={"retry-after": "0"}),
        Answer(deltas=said("never"), cut_after=0),
        Answer(deltas=said("never"), cut_after=180),
        Answer(deltas=[], error=problem("broke", "server_error")),
        Answer(deltas=[], has_end=False),
        Answer(deltas=[], finish="abort"),
    ],
)
async def test_a_turn_is_asked_for_again_before_its_first_token(first: Answer) -> None:
    server = ContractServer([first, HELLO])
    async with open_run(server) as run:
        assert text_of((await sample(run))[0]) == "Hello"
    assert len(server.asked) == 2 and server.asked[0].body == server.asked[1].body


@pytest.mark.parametrize(
    "answer",
    [
        Answer(deltas=said("Hel"), error=problem("broke", "server_error")),
        Answer(deltas=said("Hel"), has_end=False),
        Answer(deltas=said("Hel"), finish="error"),
        Answer(deltas=[*said("Hel"), {"content": 5}]),
    ],
)
async def test_a_turn_that_breaks_after_its_first_token_fails(answer: Answer) -> None:
    server = ContractServer([answer])
    async with open_run(server) as run:
        run.start_step(StepSpec())
        assert await run.next_deltas() == [TextDelta("Hel")]
        with pytest.raises(BackendError, match="service"):
            await run.next_deltas()
    assert len(server.asked) == 1


async def test_a_cut_at_any_byte_loses_nothing_or_fails() -> None:
    whole = [*thought("hm"), *said("Hel", "lo"), *called("look", "{}")]
    server = ContractServer([Answer(deltas=whole)])
    async with open_run(server) as run:
        expected, _ = await sample(run)
    num_bytes = server.asked[0].num_answered_bytes
    for cut in range(0, num_bytes, max(num_bytes // CUTS, 1)):
        await _cut_at(cut, Answer(deltas=whole, cut_after=cut), expected)


async def _cut_at(cut: int, broken: Answer, expected: list[Any]) -> None:
    server = ContractServer([broken, Answer(deltas=broken.deltas)])
    async with open_run(server) as run:
        run.start_step(StepSpec())
        came: list[Any] = []
        try:
            while not came or not isinstance(came[-1], StepEnd):
                came += await run.next_deltas()
            assert came[:-1] == expected, cut
        except BackendError:
            assert came and came == expected[: len(came)], cut
            assert len(server.asked) == 1, cut


@pytest.mark.parametrize(
    ("answer", "server", "code"),
    [
        (None, {"context_window": 1}, "context_length_exceeded"),
        (None, {"api_key": "other"}, "server_error"),
        (Answer(status=404, error=problem("m", "model_not_found")), {}, "model_not_found"),
        (Answer(status=429, error=queue_exceeded(), headers={"retry-after": "60"}), {}, "rate_limit_exceeded"),
    ],
)
async def test_a_refusal_has_its_code(answer: Answer | None, server: Any, code: str) -> None:
    async with open_run(ContractServer([answer] if answer else [], **server)) as run:
        with pytest.raises(BackendError) as failed:
            await sample(run)
    assert failed.value.code == code


async def test_a_fault_of_ours_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    async with open_run(ContractServer()) as run:
        run.context.body = None  # type: ignore[method-assign, assignment]
        with pytest.raises(BackendError, match="could not go on"):
            await sample(run)
    assert "failed" in caplog.text


# --- stopping -----------------------------------------------------------------------------------------------------

SLOW = Answer(deltas=[*said("Hel", "lo"), *called("look", "{}")], between_s=math.inf)


async def test_a_cancelled_step_ends_at_the_service_at_once() -> None:
    server = ContractServer([SLOW, HELLO])
    async with open_run(server) as run:
        run.start_step(StepSpec())
        assert await run.next_deltas() == [TextDelta("Hel")]
        run.cancel_step()
        await server.asked[0].ended.wait()
        assert server.asked[0].is_aborted
        with pytest.raises(ValueError, match="no step"):
            await run.next_deltas()
        assert text_of((await sample(run))[0]) == "Hello"
    assert server.asked[1].body["messages"][-1] == {"role": "assistant", "content": "Hel"}


async def test_a_call_that_was_cut_has_no_end_when_it_is_interrupted_either() -> None:
    half = Answer(deltas=called("look", '{"n":1}', shape="split")[:4], finish="length")
    async with open_run(ContractServer([half])) as run:
        run.start_step(StepSpec())
        await trio.testing.wait_all_tasks_blocked(0.05)  # the answer is whole, and nobody has looked
        assert not any(isinstance(delta, CallEnd) for delta in run.interrupt())
        assert [message.role for message in run.context.messages] == ["user"]


async def test_an_interrupted_step_keeps_what_it_said() -> None:
    server = ContractServer([SLOW, HELLO])
    async with open_run(server) as run:
        run.start_step(StepSpec())
        assert await run.next_deltas() == [TextDelta("Hel")]
        (end,) = run.interrupt()
        assert isinstance(end, StepEnd) and end.reason == "stop" and end.usage.output_tokens == 1
        await give(run, user("shorter"))
        assert text_of((await sample(run))[0]) == "Hello"
    assert [message["content"] for message in server.asked[1].body["messages"]] == ["hi", "Hel", "shorter"]


async def test_a_run_that_is_over_gives_its_connection_to_the_next() -> None:
    server = ContractServer([HELLO] * 2)
    async with open_chat(server) as backend:
        for _ in range(2):
            run = backend.open_sequence(spec())
            await give(run, user("hi"))
            await sample(run)
            run.close()
    assert len({sent.connection for sent in server.asked}) == 1


async def test_a_run_whose_service_was_restarted_goes_on() -> None:
    server = ContractServer([HELLO] * 2)
    async with open_run(server) as run:
        await sample(run)
        await server.drop_all()
        await give(run, user("still there?"))
        assert text_of((await sample(run))[0]) == "Hello"
    assert len({sent.connection for sent in server.asked}) == 2


# --- at rest ------------------------------------------------------------------------------------------------------


async def test_a_fork_goes_on_by_itself() -> None:
    server = ContractServer([HELLO] * 3)
    async with open_run(server) as run:
        await sample(run)
        twin = run.fork("resp_2")
        for one, text in ((run, "left"), (twin, "right")):
            await give(one, user(text))
            await sample(one)
        twin.close()
    left, right = (sent.body["messages"] for sent in server.asked[1:])
    assert left[:-1] == right[:-1] and (left[-1]["content"], right[-1]["content"]) == ("left", "right")


async def test_a_restarted_context_begins_with_the_instructions_again() -> None:
    server = ContractServer([HELLO] * 2)
    async with open_run(server, instructions="Be kind.") as run:
        await sample(run)
        run.restart()
        assert run.num_context_tokens == 0
        await give(run, user("summary"))
        await sample(run)
    assert [message["content"] for message in server.asked[1].body["messages"]] == ["Be kind.", "summary"]


async def test_what_was_prepared_before_the_context_moved_is_not_taken() -> None:
    async with open_run(ContractServer([HELLO])) as run:
        early = await run.prepare([user("early")])
        await sample(run)
        with pytest.raises(ValueError, match="prepared at"):
            run.commit(early)


async def test_what_was_prepared_for_a_context_that_is_as_long_by_chance_follows_what_came() -> None:
    server = ContractServer([CALLS, HELLO])
    async with open_run(server) as run:
        early = await run.prepare([FunctionCallOutput(call_id="ours", output="early")])
        await sample(run)
        run.context.num_tokens = early.base
        run.commit(early)
        await sample(run)
    assert server.asked[1].body["messages"][-1]["tool_call_id"] == "call_1"


async def test_a_past_without_items_is_none() -> None:
    async with open_chat(ContractServer()) as backend:
        run = backend.open_sequence(spec())
        with pytest.raises(ValueError, match="does not end"):
            run.restore(Past([], [[user("hi")]], 9))
        await run.foresee([FunctionCallOutput(call_id="c", output="x")])
        run.restore(Past([], [], 9, [user("hi")]))
        assert run.num_context_tokens == 9
        with pytest.raises(ValueError, match="only a new"):
            run.restore(Past([], [], 9, [user("hi")]))
        run.close()


async def test_a_step_that_has_failed_cannot_be_interrupted() -> None:
    async with open_run(ContractServer([Answer(status=400, error=problem("no", "wrong_api_format"))])) as run:
        run.start_step(StepSpec())
        with pytest.raises(BackendError):
            await run.next_deltas()
        with pytest.raises(BackendError):
            run.interrupt()
        run.cancel_step()


async def test_it_does_one_thing_at_a_time() -> None:
    async with open_run(ContractServer([SLOW])) as run:
        with pytest.raises(ValueError, match="no step"):
            run.interrupt()
        run.cancel_step()
        run.start_step(StepSpec())
        for act in (
            run.restart,
            lambda: run.fork("r"),
            lambda: run.start_step(StepSpec()),
            lambda: run.restore(Past([], [], 0)),
        ):
            with pytest.raises(ValueError, match="under way"):
                act()
        run.close()
        run.close()
        with pytest.raises(ValueError, match="closed"):
            run.start_step(StepSpec())


async def test_the_backend_has_the_services_models() -> None:
    async with open_chat(ContractServer(models=("a", "b"))) as backend:
        await backend.wait_ready()
        assert backend.is_ready and [model.id for model in backend.models()] == ["a", "b"]
        assert (backend.resolve(None).id, backend.resolve("b").id) == ("a", "b")
        with pytest.raises(NotFound):
            backend.resolve("c")
        with pytest.raises(NotFound):
            backend.open_sequence(spec(model="c"))
