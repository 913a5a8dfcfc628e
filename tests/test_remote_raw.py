"""remote/raw.py, raw_turn.py, raw_prompt.py, dialects.py, hold.py: steps on a service that takes and gives ids."""

import copy
import math
import os
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio

from engine.backends.base import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    RunSpec,
    Sequence,
    StepEnd,
    StepSpec,
    TextDelta,
    ToolChoice,
)
from engine.backends.chance import Chance
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.dialect import Chunk, Times
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.encoding import PLAIN
from engine.backends.remote.errors import BrokenStream, UpstreamError
from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.raw import RawModel, open_raw_backend
from engine.backends.remote.raw_turn import RawTurn
from engine.errors import EngineError, NotFound, RequestError
from engine.items import FunctionCallOutput, Item, Message
from engine.toolspec import Tool
from tests.contract_answers import Answer, Piece, problem, queue_exceeded
from tests.contract_server import ContractServer, Sent, open_contract_server
from tests.remote_model import MODEL, hashed, open_raw, open_remote, saying, speaking
from tests.remote_peer import Reply, event, open_peer, sse
from tests.tiny import CONTEXT_WINDOW, HERMES, STOP_ID, save_format

GO, SUN = Message(role="user", content="go"), FunctionCallOutput(call_id="c", output="sun")
LOOK = Tool("function", "look", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
HEAR = Tool("function", "hear", parameters={"type": "object"})
CALL = '<tool_call>\n{"name": "look", "arguments": {"n": 1}}\n</tool_call>'
CUTS = int(os.environ.get("LONGLOOP_SOAK_CUTS", "50"))
FREE = StepSpec()
REQUIRED = StepSpec(ToolChoice("required"))
NAMED = StepSpec(ToolChoice("required", frozenset({"hear"}), is_named=True))
DIALECTS = ["cerebras", "vllm", "llamacpp"]


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> PromptFormat:
    return PromptFormat.load(save_format(tmp_path_factory.mktemp("format"), HERMES))


def served(answer: Any, **fields: Any) -> ContractServer:
    return ContractServer(answer, models=(MODEL,), **fields)


def spec(**fields: Any) -> RunSpec:
    return RunSpec(**({"response_id": "r", "model": MODEL, "tools": [LOOK]} | fields))


async def step(sequence: Sequence, *items: Item, step: StepSpec = FREE) -> list[Delta]:
    """Give and sample."""
    if items:
        sequence.commit(await sequence.prepare(items))
    sequence.start_step(step)
    deltas: list[Delta] = []
    with trio.fail_after(10):
        while not deltas or not isinstance(deltas[-1], StepEnd):
            deltas += await sequence.next_deltas()
    return deltas


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def arguments(deltas: list[Delta]) -> str:
    assert any(isinstance(delta, CallEnd) for delta in deltas)
    return "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))


def context(sequence: Sequence) -> list[int]:
    return list(sequence.tokens.context())


# --- ids there and back


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("gives_stop", [True, False])
async def test_what_is_sent_is_the_log_and_what_comes_is_in_it(
    form: PromptFormat, dialect: Any, gives_stop: bool
) -> None:
    server = served(speaking(saying(form, "I look." + CALL, "Sun, sun."), gives_stop=gives_stop), dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        deltas = await step(sequence, GO)
        assert (text(deltas), arguments(deltas)) == ("I look.", '{"n": 1}')
        said = context(sequence)
        deltas = await step(sequence, SUN)
        assert text(deltas) == "Sun, sun."
        first, second = (sent.body["prompt"] for sent in server.asked)
        assert said[: len(first)] == first
        assert second[: len(said)] == said
        assert context(sequence)[: len(second)] == second
        assert (context(sequence)[-1] == STOP_ID) == gives_stop
    assert len({sent.connection for sent in server.asked}) == 1


async def test_a_fork_keeps_the_cache_key_and_a_run_that_is_over_leaves_its_connection(form: PromptFormat) -> None:
    server = served(speaking(saying(form, "a", "b")))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        await step(sequence, GO)
        fork = sequence.fork("r2")
        sequence.close()
        await step(fork, GO)
        await step(backend.open_sequence(spec(response_id="r3")), GO)
    assert [sent.body["prompt_cache_key"] for sent in server.asked] == ["r", "r", "r3"]
    first, second, third = (sent.connection for sent in server.asked)
    assert third == first != second


async def test_settings_of_the_run_are_asked_for(form: PromptFormat) -> None:
    server = served(speaking(hashed))
    async with open_remote(server, form) as backend:
        plain = backend.open_sequence(spec())
        await step(plain, GO, step=StepSpec(max_tokens=5))
        tuned = backend.open_sequence(spec(temperature=0.5, top_p=0.9, seed=7, presence_penalty=0.1))
        await step(tuned, GO, step=StepSpec(max_tokens=5))
        await step(tuned, step=StepSpec(max_tokens=6))
    first, second, third = (sent.body for sent in server.asked)
    assert first.keys().isdisjoint({"temperature", "top_p", "seed"})
    assert (first["max_tokens"], first["return_raw_tokens"]) == (5, True)
    assert (second["temperature"], second["top_p"], second["presence_penalty"]) == (0.5, 0.9, 0.1)
    assert second["seed"] != third["seed"]


# --- log-probabilities


_TOP = [{"id": 90, "logprob": -0.5}, {"id": 91, "logprob": -1.5}, {"id": 92, "logprob": -2.5}]


@pytest.mark.parametrize("by_id", [True, False])
async def test_log_probabilities_come_with_the_text_where_the_service_tells_them(  # P58
    form: PromptFormat, by_id: bool
) -> None:
    dialect = dialect_of("llamacpp")
    assert dialect is not None
    chance = {"id": 90, "logprob": -0.5, "top_logprobs": _TOP}
    one = {"tokens": [90], "stop": False} | ({"completion_probabilities": [chance]} if by_id else {})
    events = sse(one, one, {"tokens": [], "stop": True, "stop_type": "limit"}, done=False)
    async with open_peer(lambda asked: Reply(events)) as peer:
        link, model = Link(LinkConfig(base_url=peer.url)), RawModel(id=MODEL, created=1, owned_by="x")
        async with open_raw_backend(link, dialect, model, form) as backend:
            sequence = backend.open_sequence(spec())
            *deltas, _ = await step(sequence, GO, step=StepSpec(max_tokens=5, top_logprobs=2))
            span = list(sequence.tokens.since(0))[-1]
    assert peer.asked[0].value()["n_probs"] == 2
    tokens = [token for delta in deltas if isinstance(delta, TextDelta) for token in delta.logprobs]
    assert [token.logprob for token in tokens] == ([-0.5, -0.5] if by_id else [])
    assert span.logprobs == ([-0.5, -0.5] if by_id else msgspec.UNSET)
    assert {len(token.top_logprobs) for token in tokens} == ({2} if by_id else set())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_log_probabilities_are_asked_for_only_when_they_are_wanted(form: PromptFormat, dialect: Any) -> None:
    server = served(speaking(hashed), dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        await step(sequence, GO, step=StepSpec(max_tokens=2))
        await step(sequence, step=StepSpec(max_tokens=2, top_logprobs=0))
    names = {"vllm": {"logprobs": 0, "return_tokens_as_token_ids": True}, "llamacpp": {"n_probs": 1}}
    assert not server.asked[0].body.keys() & {"logprobs", "n_probs"}
    assert names.get(dialect, {}).items() <= server.asked[1].body.items()


# --- how a step ends


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_service_s_account_is_the_step_s(form: PromptFormat, dialect: Any) -> None:
    server = served(speaking(hashed, cached_tokens=9), dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        *_, end = await step(sequence, GO, step=StepSpec(max_tokens=4))
        assert isinstance(end, StepEnd)
        assert end.reason == "max_output_tokens"
        assert (end.usage.output_tokens, end.usage.input_tokens_details.cached_tokens) == (4, 9)
        assert end.usage.input_tokens == len(server.asked[0].body["prompt"])
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (9, end.usage.input_tokens - 9)
        if dialect != "vllm":
            assert (end.timing.prefill_ms, end.timing.sampling_ms) == (500, 1000)
        assert end.timing.queue_ms == pytest.approx(250 if dialect == "cerebras" else 0, abs=100)


async def test_what_a_first_request_computed_is_not_reused(form: PromptFormat) -> None:
    answer = speaking(saying(form, "Hi", "You"), cached_tokens=10_000)
    cuts = iter([None, 600])
    server = served(lambda sent: replace(answer(sent), cut_after=next(cuts, None)))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        *_, end = await step(sequence, GO)
        assert isinstance(end, StepEnd) and end.timing.tokens_prefilled == 0
        old = len(context(sequence))
        *_, end = await step(sequence, SUN)
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (old, end.timing.tokens_new)
    assert len(server.asked) == 3


async def test_what_can_be_no_count_and_no_time_does_not_count(form: PromptFormat) -> None:
    times = {"queue_time": -1e308, "prompt_time": 1e308, "completion_time": 1.0}
    answer = Answer(pieces=[Piece(ids=(70,))], finish="length", cached_tokens=-5, times=times)
    async with open_remote(served([answer]), form) as backend:
        end = (await step(backend.open_sequence(spec()), GO, step=StepSpec(max_tokens=1)))[-1]
    assert isinstance(end, StepEnd)
    assert (end.timing.tokens_reused, end.timing.prefill_ms) == (0, 0) and 0 <= end.timing.queue_ms < 1e6
    assert end.timing.sampling_ms == 1000


async def test_a_filtered_answer_is_not_taken_for_a_whole_one(form: PromptFormat) -> None:
    server = served([Answer(pieces=[Piece("", (50,))], finish="content_filter")])
    async with open_remote(server, form) as backend:
        *_, end = await step(backend.open_sequence(spec()), GO)
        assert isinstance(end, StepEnd) and end.reason == "content_filter"


async def test_a_full_context_ends_the_step_without_asking(form: PromptFormat) -> None:
    server = served(speaking(hashed))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        await step(sequence, GO, step=StepSpec(max_tokens=CONTEXT_WINDOW - 200))
        *_, end = await step(sequence)
        assert isinstance(end, StepEnd) and end.reason == "context_length_exceeded"
        assert len(context(sequence)) == CONTEXT_WINDOW
        *_, end = await step(sequence)
        assert (end.reason, end.usage.output_tokens) == ("context_length_exceeded", 0)
        with pytest.raises(RequestError, match="fit"):
            await sequence.prepare([SUN])
    assert len(server.asked) == 2


async def test_what_a_service_says_behind_the_turn_s_end_does_not_count(form: PromptFormat) -> None:
    ids = [*form.vocabulary.encode("Hi"), STOP_ID, 50, 51]
    server = served(
        [Answer(pieces=[Piece("", (id_,)) for id_ in ids], finish="length"), Answer(pieces=[Piece("", (60,))])]
    )
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        *said, end = await step(sequence, GO)
        assert (text(said), end.reason, context(sequence)[-1]) == ("Hi", "stop", STOP_ID)
        await step(sequence, SUN)


async def test_a_step_that_may_make_one_call_is_over_with_it(form: PromptFormat) -> None:
    server = served(speaking(saying(form, CALL + "\n" + CALL, "Sun.")))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(parallel_tool_calls=False))
        deltas = await step(sequence, GO)
        assert arguments(deltas) == '{"n": 1}'


async def test_cancelling_a_step_closes_the_stream_at_once(form: PromptFormat) -> None:
    server = served([Answer(pieces=[Piece("", (50,))] * 3, between_s=math.inf), Answer(pieces=[Piece("", (51,))])])
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        sequence.commit(await sequence.prepare([GO]))
        sequence.start_step(StepSpec())
        await sequence.next_deltas()
        sequence.cancel_step()
        with trio.fail_after(1):
            await server.asked[0].ended.wait()
        assert server.asked[0].is_aborted
        await step(sequence, SUN)


async def test_a_step_that_was_stopped_before_it_began_asks_for_nothing(
    form: PromptFormat, caplog: pytest.LogCaptureFixture
) -> None:
    server = served(speaking(saying(form, CALL)))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(tools=[HEAR]))
        sequence.commit(await sequence.prepare([GO]))
        for _ in range(3):
            sequence.start_step(NAMED)
            sequence.cancel_step()
        sequence.start_step(FREE)
        while not any(isinstance(delta, StepEnd) for delta in await sequence.next_deltas()):
            pass
    assert len(server.asked) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_is_on_its_way_when_a_step_is_stopped_is_in_no_step(
    form: PromptFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RawTurn] = []

    class Kept(RawTurn):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("engine.backends.remote.raw.RawTurn", Kept)
    server = served(lambda _: Answer(pieces=[Piece("", (50,))] * 2, between_s=math.inf))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        sequence.commit(await sequence.prepare([GO]))
        for _ in range(2):
            sequence.start_step(FREE)
            await sequence.next_deltas()
            sequence.cancel_step()
        sequence.start_step(FREE)
        before = context(sequence)
        assert made[0].take([b'{"choices":[{"tokens":[60]}]}', b"[DONE]"])
        assert made[0].is_answered
        made[0].finish()
        assert context(sequence) == before
        sequence.cancel_step()


# --- what goes wrong


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(status=400, error=problem("too long", "context_length_exceeded")), "context_length_exceeded"),
        (Answer(status=404, error=problem("gone", "model_not_found")), "model_not_found"),
        (Answer(status=429, error=queue_exceeded(), headers={"retry-after": "60"}), "rate_limit_exceeded"),
        (Answer(status=401, error=problem("who?", "wrong_api_key")), "server_error"),
    ],
)
async def test_a_refusal_fails_the_step_with_its_code(form: PromptFormat, answer: Answer, code: str) -> None:
    async with open_remote(served(lambda _: answer), form) as backend:
        sequence = backend.open_sequence(spec())
        with pytest.raises(UpstreamError) as caught:
            await step(sequence, GO)
        assert caught.value.code == code


async def test_an_error_in_the_stream_is_gone_on_from(form: PromptFormat) -> None:
    speak = saying(form, "Hello there")

    def answer(sent: Sent) -> Answer:
        whole = speaking(speak)(sent)
        if len(server.asked) > 1:
            return whole
        return Answer(pieces=whole.pieces[:4], error=problem("boom", "server_error"))

    server = served(answer)
    async with open_remote(server, form) as backend:
        assert text(await step(backend.open_sequence(spec()), GO)) == "Hello there"


async def test_what_came_before_an_error_is_kept_when_they_come_at_once(form: PromptFormat) -> None:
    told = b"".join(event(one) for one in (choice([70]), choice([71], "stop"), {"error": "behind the end"}))
    async with (
        open_peer(lambda asked: Reply([told])) as peer,
        open_raw(peer.url.removesuffix("/v1"), served([]), form) as backend,
    ):
        sequence = backend.open_sequence(spec())
        await step(sequence, GO)
        assert context(sequence)[-2:] == [70, 71]


async def test_text_without_its_ids_fails_the_step(form: PromptFormat) -> None:
    lost = Reply(sse(choice([70]), {"choices": [{"text": "and on", "finish_reason": "stop"}]}))
    async with (
        open_peer(lambda asked: lost) as peer,
        open_raw(peer.url.removesuffix("/v1"), served([]), form, encoding=PLAIN, retries=0) as backend,
    ):
        with pytest.raises(BrokenStream):
            await step(backend.open_sequence(spec()), GO)


def choice(ids: list[int], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"tokens": ids, "finish_reason": finish}]}


async def test_ids_that_are_none_fail_the_step(form: PromptFormat) -> None:
    async with open_remote(served(lambda _: Answer(pieces=[Piece("", (-1,))])), form, retries=1) as backend:
        with pytest.raises(BrokenStream):
            await step(backend.open_sequence(spec()), GO)


async def test_a_fault_of_ours_fails_the_step_alone(form: PromptFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(speaking(saying(form, "Hi")))
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        with monkeypatch.context() as patch:
            patch.setattr("engine.backends.remote.raw.RawTurn", None)
            with pytest.raises(EngineError, match="could not go on"):
                await step(sequence, GO)
        assert text(await step(backend.open_sequence(spec()), GO)) == "Hi"


async def test_another_model_is_not_found(form: PromptFormat) -> None:
    async with open_remote(served([]), form) as backend:
        with pytest.raises(NotFound):
            backend.open_sequence(spec(model="other"))
        assert [model.id for model in backend.models()] == [MODEL]
        assert backend.is_ready
        await backend.wait_ready()


# --- breaks


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_wherever_the_stream_is_cut_the_step_says_the_same(form: PromptFormat, dialect: Any) -> None:
    answer = speaking(saying(form, "I look." + CALL))
    async with open_remote(whole := served(answer, dialect=dialect), form) as backend:
        sequence = backend.open_sequence(spec())
        *reference, _ = await step(sequence, GO)
        expected = context(sequence), text(reference), arguments(reference)
    total = whole.asked[0].num_answered_bytes
    for cut in range(0, total, max(total // CUTS, 1)):
        server = served(cut_once(answer, cut), dialect=dialect)
        async with open_remote(server, form) as backend:
            sequence = backend.open_sequence(spec())
            *deltas, _ = await step(sequence, GO)
            assert (context(sequence), text(deltas), arguments(deltas)) == expected, cut
            assert len(server.asked) <= 2


def cut_once(answer: Callable[[Sent], Answer], cut: int) -> Callable[[Sent], Answer]:
    """The first answer is cut after so many bytes."""
    cuts = iter([cut])
    return lambda sent: replace(answer(sent), cut_after=next(cuts, None))


async def test_a_service_that_was_killed_in_the_pause_is_found_again(form: PromptFormat) -> None:
    server = served(speaking(saying(form, CALL, "Sun.")))
    async with open_contract_server(server) as url:
        port = int(url.rpartition(":")[2])
    async with open_raw(url, server, form) as backend:
        async with open_contract_server(server, port):
            sequence = backend.open_sequence(spec())
            assert arguments(await step(sequence, GO))
        sequence.commit(await sequence.prepare([SUN]))
        async with open_contract_server(server, port):
            assert text(await step(sequence)) == "Sun."


# --- gaps


async def test_ids_that_a_stream_leaves_out_are_asked_for_without_one(form: PromptFormat) -> None:
    """llama.cpp sends nothing for an id that ends inside a character, and then only the id that ends it."""
    said = "Sun 🌞 and ä."
    speak = saying(form, said)

    def answer(sent: Sent) -> Answer:
        whole = speaking(speak)(sent)
        return replace(whole, pieces=hidden_in_characters(form, whole.pieces))

    server = served(answer, dialect="llamacpp")
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec())
        assert text(await step(sequence, GO)) == said
        assert context(sequence)[-1] == STOP_ID
    assert [sent.body["stream"] for sent in server.asked].count(False) == 2


def hidden_in_characters(form: PromptFormat, pieces: ListOf[Piece]) -> list[Piece]:
    rest, found = b"", list[Piece]()
    for piece in pieces:
        rest += b"".join(map(form.vocabulary.bytes_of, piece.ids))
        is_whole = rest.decode(errors="ignore").encode() == rest
        found.append(Piece("", piece.ids, is_hidden=not is_whole))
        rest = b"" if is_whole else rest
    return found


# --- what holds a step


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_that_must_be_is_begun_for_the_model(form: PromptFormat, dialect: Any) -> None:
    rest = {"cerebras": '{"x": 1}}\n</tool_call>', "vllm": '{"x": 1}', "llamacpp": '{"x": 1}'}[dialect]
    lead = '<tool_call>\n{"name": "hear", "arguments": '
    server = served(speaking(lambda ids, limit: [*form.vocabulary.encode(rest), STOP_ID]), dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(tools=[LOOK, HEAR]))
        deltas = await step(sequence, GO, step=NAMED)
        assert isinstance(deltas[0], CallStart) and deltas[0].name == "hear"
        assert arguments(deltas) == '{"x": 1}'
        assert server.asked[0].body["prompt"][-len(form.vocabulary.encode(lead)) :] == form.vocabulary.encode(lead)
        whole = form.vocabulary.encode("}\n</tool_call>")
        said = [token_id for token_id in context(sequence) if token_id != STOP_ID]
        assert said[-len(whole) :] == whole
        deltas = await step(sequence, SUN, step=StepSpec(ToolChoice("none")))
    body = server.asked[0].body
    schema = {"vllm": body.get("structured_outputs", {}).get("json"), "llamacpp": body.get("json_schema")}
    assert schema.get(dialect) == (None if dialect == "cerebras" else {"type": "object"})


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_one_call_of_several_may_be_chosen(form: PromptFormat, dialect: Any) -> None:
    lead = "<tool_call>\n" + ('{"name": "' if dialect == "cerebras" else "")
    body = '{"name": "look", "arguments": {"n": 2}}'
    rest = body.removeprefix('{"name": "') + "\n</tool_call>" if dialect == "cerebras" else body
    server = served(speaking(lambda ids, limit: [*form.vocabulary.encode(rest), STOP_ID]), dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(tools=[LOOK, HEAR]))
        deltas = await step(sequence, GO, step=REQUIRED)
        assert isinstance(deltas[0], CallStart) and deltas[0].name == "look"
        assert arguments(deltas) == '{"n": 2}'
    sent = server.asked[0].body
    assert sent["prompt"][-len(form.vocabulary.encode(lead)) :] == form.vocabulary.encode(lead)
    if dialect == "llamacpp":
        names = [call["properties"]["name"]["const"] for call in sent["json_schema"]["anyOf"]]
        assert names == ["look", "hear"]


async def test_a_held_text_that_breaks_off_is_not_gone_on_with(form: PromptFormat) -> None:
    server = served([Answer(pieces=[Piece("", (50,))], has_end=False)], dialect="vllm")
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(tools=[HEAR]))
        with pytest.raises(BrokenStream):
            await step(sequence, GO, step=NAMED)


async def test_an_answer_s_format_is_the_service_s_to_hold(form: PromptFormat) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text_format = {"type": "json_schema", "name": "x", "schema": schema}
    server = served(speaking(saying(form, '{"a": 1}')), dialect="vllm")
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(tools=[], text_format=text_format))
        assert text(await step(sequence, GO)) == '{"a": 1}'
        assert server.asked[0].body["structured_outputs"] == {"json": schema}
    async with open_remote(served([]), form) as backend:
        with pytest.raises(RequestError) as caught:
            backend.open_sequence(spec(tools=[], text_format=text_format))
        assert caught.value.param == "text.format"


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
@pytest.mark.parametrize("wants", ["a call", "an answer", "nothing"])
async def test_the_model_may_call_or_answer_in_a_format(form: PromptFormat, dialect: Any, wants: str) -> None:
    text_format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}

    def answer(sent: Sent) -> Answer:
        is_held = "structured_outputs" in sent.body or "json_schema" in sent.body
        free = {"a call": f"\n{CALL}\n{CALL}", "an answer": "Well, let me see.", "nothing": ""}[wants]
        return speaking(saying(form, '{"a": 1}' if is_held else free))(sent)

    server = served(answer, dialect=dialect)
    async with open_remote(server, form) as backend:
        sequence = backend.open_sequence(spec(text_format=text_format, parallel_tool_calls=False))
        deltas = await step(sequence, GO)
        if wants == "a call":
            assert arguments(deltas) == '{"n": 1}'
        else:
            assert text(deltas) == '{"a": 1}'
        assert [sent.body["stream"] for sent in server.asked] == [False, True]
        assert context(sequence)[: len(server.asked[1].body["prompt"])] == server.asked[1].body["prompt"]


async def test_a_call_that_begins_as_an_answer_does_leaves_no_room_for_a_format(form: PromptFormat) -> None:
    calls = msgspec.structs.replace(form.family.calls, open="")
    bare = copy.copy(form)
    bare.family = msgspec.structs.replace(form.family, calls=calls)
    async with open_remote(served([], dialect="vllm"), bare) as backend:
        sequence = backend.open_sequence(spec(text_format={"type": "json_object"}))
        with pytest.raises(RequestError, match="tool_choice"):
            await step(sequence, GO)


async def test_a_call_of_no_tool_cannot_be_required(form: PromptFormat) -> None:
    async with open_remote(served([]), form) as backend:
        with pytest.raises(RequestError) as caught:
            await step(backend.open_sequence(spec(tools=[])), GO, step=REQUIRED)
        assert caught.value.param == "tool_choice"


# --- dialects


@pytest.mark.parametrize(
    ("dialect", "event", "chunk"),
    [
        ("cerebras", b'{"choices":[{"index":0,"tokens":[5,6],"finish_reason":null}]}', Chunk([5, 6])),
        ("vllm", b'{"choices":[{"text":"a","token_ids":[7],"prompt_token_ids":[1]}]}', Chunk([7])),
        ("vllm", b'{"choices":[{"text":"","token_ids":null,"finish_reason":"length"}]}', Chunk(end="length")),
        ("cerebras", b'{"choices":[{"tokens":[],"finish_reason":"stop"}]}', Chunk(end="stop")),
        ("vllm", b'{"choices":[{"token_ids":[],"finish_reason":"content_filter"}]}', Chunk(end="content_filter")),
        (
            "cerebras",
            b'{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":3}},"time_info":{"queue_time":0.001}}',
            Chunk(num_cached=3, times=Times(1.0, 0.0, 0.0)),
        ),
        ("vllm", b'{"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}', Chunk()),
        ("vllm", b"[DONE]", Chunk(is_last=True)),
        (
            "vllm",
            b'{"choices":[{"token_ids":[7],"logprobs":{"tokens":["token_id:7"],"token_logprobs":[-0.5],'
            b'"top_logprobs":[{"token_id:8":-1.5,"token_id:7":-0.5}]}}]}',
            Chunk([7], [Chance(-0.5, [(7, -0.5), (8, -1.5)])]),
        ),
        (
            "vllm",
            b'{"choices":[{"token_ids":[7],"logprobs":{"tokens":["token_id:7"],"token_logprobs":[-0.5]}}]}',
            Chunk([7], [Chance(-0.5)]),
        ),
        ("vllm", b'{"choices":[{"token_ids":[7],"logprobs":{"tokens":["a"],"token_logprobs":[-0.5]}}]}', Chunk([7])),
        (
            "vllm",
            b'{"choices":[{"token_ids":[7],"logprobs":{"tokens":["token_id:7"],"token_logprobs":[null]}}]}',
            Chunk([7]),
        ),
        (
            "llamacpp",
            b'{"tokens":[4],"completion_probabilities":[{"id":4,"logprob":-1,"top_logprobs":[{"id":5,"logprob":-2}]}]}',
            Chunk([4], [Chance(-1, [(5, -2)])]),
        ),
        ("llamacpp", b'{"tokens":[4],"completion_probabilities":[{"id":5,"logprob":-1}]}', Chunk([4])),
        ("llamacpp", b'{"tokens":[4],"stop":false,"tokens_predicted":2}', Chunk([4], num_told=2)),
        (
            "llamacpp",
            b'{"tokens":[],"stop":true,"stop_type":"limit","timings":{"cache_n":5,"prompt_ms":1,"predicted_ms":2}}',
            Chunk(end="length", num_cached=5, times=Times(0, 1, 2), is_last=True),
        ),
    ],
)
def test_what_an_event_says(dialect: str, event: bytes, chunk: Chunk) -> None:
    found = dialect_of(dialect)
    assert found is not None
    assert found.read(event) == chunk


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("event", [b"{", b'{"error": {"message": "x"}}', b'{"choices": 3, "tokens": 4}'])
def test_what_is_no_answer_is_an_error(dialect: str, event: bytes) -> None:
    found = dialect_of(dialect)
    assert found is not None
    with pytest.raises(UpstreamError):
        found.read(event)


def test_an_aborted_turn_is_a_break() -> None:
    found = dialect_of("vllm")
    assert found is not None
    with pytest.raises(BrokenStream):
        found.read(b'{"choices":[{"token_ids":[],"finish_reason":"abort"}]}')


def test_there_is_no_dialect_where_there_are_no_ids() -> None:
    assert dialect_of("openai") is None
