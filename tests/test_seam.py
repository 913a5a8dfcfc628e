"""base.py's promises, kept by every backend alike: fork, restart, interrupt, restore, summaries, log-probabilities.

Each test runs on a scripted run (without and with a tokenizer), on the local backend over a real worker process, and
on both routes to a service.
"""

import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from engine.backends.base import (
    Backend,
    CallStart,
    Delta,
    Past,
    RunSpec,
    Sequence,
    StepEnd,
    StepSpec,
    TextDelta,
    ToolChoice,
)
from engine.backends.local import open_local_backend
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.remote.chat import ChatBackend
from engine.backends.remote.chat_sequence import ChatSequence
from engine.backends.remote.raw import RawBackend
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_context import EstimatedContext
from engine.backends.script_prompt import PromptContext
from engine.items import FunctionCallOutput, Item, Message
from engine.toolspec import Tool
from tests.chat_route import open_chat
from tests.contract_answers import Answer, said
from tests.contract_server import ContractServer, Sent
from tests.local_model import MODEL_ID, local_model
from tests.remote_model import hashed, open_remote, speaking
from tests.tiny import HERMES, save_format

SCENARIO = f"""
model: {MODEL_ID}
steps:
  - {{text: I look., call: {{name: look}}}}
  - {{text: "It is {{last_output}} of {{items}}."}}
  - repeat: {{times: 3, steps: [{{text: "{{turn}} {{step}} {{index}} {{last_user}}"}}]}}
"""
LOOK = Tool("function", "look", parameters={"type": "object"})
GO, SUN = Message(role="user", content="go"), FunctionCallOutput(call_id="c", output="sun")
RAIN, BYE = FunctionCallOutput(call_id="c", output="rain"), Message(role="user", content="bye")
SHORT = StepSpec(ToolChoice("none"), max_tokens=6)
Opener = Callable[[], AbstractAsyncContextManager[Backend]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_format(tmp_path_factory.mktemp("format"), HERMES)


@pytest.fixture(params=["script", "script with a tokenizer", "local", "remote", "chat"])
def opened(request, folder) -> Opener:
    form = PromptFormat.load(folder)

    @asynccontextmanager
    async def backend() -> AsyncIterator[Backend]:
        with trio.fail_after(60):
            if request.param == "local":
                worker = (sys.executable, "-m", "tests.fake_model")
                model = local_model(folder)
                async with open_local_backend(
                    model, partial(Prompt, form), max_kv_bytes=1 << 20, worker=worker
                ) as local:
                    await local.wait_ready()
                    yield local
            elif request.param == "remote":
                async with open_remote(ContractServer(speaking(hashed), models=(MODEL_ID,)), form) as remote:
                    yield remote
            elif request.param == "chat":
                async with open_chat(ContractServer(talking, models=(MODEL_ID,))) as chat:
                    yield chat
            else:
                context = EstimatedContext if request.param == "script" else partial(PromptContext, form)
                yield ScriptBackend([parse_scenario(SCENARIO)], context)

    return backend


def spec() -> RunSpec:
    return RunSpec(response_id="r", model=MODEL_ID, instructions="Be kind.", tools=[LOOK])


async def give(sequence: Sequence, *items: Item) -> None:
    sequence.commit(await sequence.prepare(items))


async def step(sequence: Sequence, step: StepSpec = SHORT) -> list[Delta]:
    sequence.start_step(step)
    deltas: list[Delta] = []
    while not deltas or not isinstance(deltas[-1], StepEnd):
        deltas += await sequence.next_deltas()
    return deltas


async def turn(sequence: Sequence, *items: Item) -> tuple[str, int, int]:
    """Give and sample: what was said, input and output tokens."""
    await give(sequence, *items)
    *deltas, end = await step(sequence)
    assert isinstance(end, StepEnd)
    return text(deltas), end.usage.input_tokens, end.usage.output_tokens


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def state(sequence: Sequence) -> tuple[object, int]:
    return list(sequence.tokens.since(0)), sequence.num_context_tokens


def past_of(sequence: Sequence, *rounds: list[Item]) -> Past:
    items = items_of(sequence) if isinstance(sequence, ChatSequence) else []
    return Past(list(sequence.tokens.since(0)), list(rounds), sequence.num_context_tokens, items)


def items_of(sequence: ChatSequence) -> list[Item]:
    """What the store would have of a context of messages, but for its instructions."""
    items: list[Item] = []
    for message in sequence.context.messages[1:]:
        if message.role == "tool":
            items.append(FunctionCallOutput(call_id=str(message.tool_call_id), output=str(message.content)))
        elif message.content:
            items.append(
                Message(role="developer" if message.role == "system" else message.role, content=message.content)
            )
    return items


def talking(sent: Sent) -> Answer:
    """Six words, which depend on everything before."""
    words = [f"{zlib.crc32(json.dumps([sent.body['messages'], n]).encode())} " for n in range(6)]
    return Answer(deltas=said(*words), finish="length", completion_tokens=6)


# --- fork --------------------------------------------------------------------------------------------------------


async def test_a_fork_goes_on_as_its_parent_does_and_leaves_it_alone(opened):
    async with opened() as backend:
        parent = backend.open_sequence(spec())
        await turn(parent, GO)
        fork, other = parent.fork("r2"), parent.fork("r3")
        before = state(parent)
        assert state(fork) == before
        odd = await turn(other, RAIN)
        said = [await turn(fork, SUN), await turn(fork, BYE)]
        assert state(parent) == before
        assert [await turn(parent, SUN), await turn(parent, BYE)] == said
        assert state(parent) == state(fork)
        assert odd != said[0]
        fork.close()
        assert await turn(parent.fork("r4"), BYE) == await turn(parent, BYE)


async def test_a_fork_has_what_was_given_and_not_sampled_from(opened):
    async with opened() as backend:
        parent = backend.open_sequence(spec())
        await turn(parent, GO)
        await give(parent, SUN)
        fork = parent.fork("r2")
        assert text(await step(fork)) == text(await step(parent))
        assert state(fork) == state(parent)


# --- restart -----------------------------------------------------------------------------------------------------


async def test_a_restarted_sequence_is_empty_and_renders_everything_again(opened):
    async with opened() as backend:
        sequence, new = backend.open_sequence(spec()), backend.open_sequence(spec())
        await turn(sequence, GO)
        sequence.restart()
        assert sequence.num_context_tokens == 0
        first, again = await new.prepare([GO, BYE]), await sequence.prepare([GO, BYE])
        assert (again.base, again.num_tokens, list(again.token_ids)) == (0, first.num_tokens, list(first.token_ids))
        sequence.commit(again)
        assert sequence.num_context_tokens == first.num_tokens
        if sequence.tokens.total:
            assert [span.segment for span in sequence.tokens.since(0)] == [0, 0, 1]
        *_, end = await step(sequence)
        assert end.reason in ("stop", "max_output_tokens")
        assert end.timing.tokens_new >= first.num_tokens


# --- interrupt ---------------------------------------------------------------------------------------------------


async def test_an_interrupted_step_ends_with_its_account_and_the_run_goes_on(opened):
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, GO)
        before = sequence.num_context_tokens
        sequence.start_step(StepSpec(ToolChoice("none")))
        deltas = await sequence.next_deltas()
        deltas += sequence.interrupt()
        end = deltas[-1]
        assert isinstance(end, StepEnd) and end.reason == "stop"
        assert [delta for delta in deltas if isinstance(delta, StepEnd)] == [end]
        assert end.usage.input_tokens + end.usage.output_tokens == sequence.num_context_tokens > before
        with pytest.raises(ValueError, match="step"):
            sequence.interrupt()
        with pytest.raises(ValueError, match="step"):
            await sequence.next_deltas()
        after = sequence.num_context_tokens
        said, given, _ = await turn(sequence, SUN)
        assert said and given > after


# --- restore -----------------------------------------------------------------------------------------------------


async def test_a_restored_sequence_goes_on_where_the_other_was(opened):
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        rounds: list[list[Item]] = []
        for items in ([GO], [SUN], [BYE], [], [GO, BYE]):
            if not items and isinstance(sequence, ChatSequence):
                continue  # two turns of the model in a row would come back as one message
            await turn(sequence, *items)
            rounds.append(items)
            restored = backend.open_sequence(spec())
            restored.restore(past_of(sequence, *rounds))
            assert state(restored) == state(sequence)
            fork = sequence.fork("r2")
            for following in ([BYE], [RAIN, GO]):
                assert await turn(restored, *following) == await turn(fork, *following)
            assert state(restored) == state(fork)


async def test_a_restored_sequence_knows_of_restarts(opened):
    async with opened() as backend:
        sequence, restored = backend.open_sequence(spec()), backend.open_sequence(spec())
        await turn(sequence, GO)
        await give(sequence, SUN)
        sequence.restart()
        await turn(sequence, GO, Message(role="developer", content="It was sunny."))
        restored.restore(past_of(sequence, [GO], [SUN]))
        assert state(restored) == state(sequence)
        assert await turn(restored, BYE) == await turn(sequence, BYE)


async def test_only_a_new_sequence_is_restored(opened):
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        await turn(sequence, GO)
        before = state(sequence)
        with pytest.raises(ValueError, match="new"):
            sequence.restore(past_of(sequence, [GO]))
        assert state(sequence) == before


# --- misuse ------------------------------------------------------------------------------------------------------

MOVES: list[Callable[[Sequence], object]] = [
    lambda sequence: sequence.fork("r2"),
    lambda sequence: sequence.restart(),
    lambda sequence: sequence.restore(Past([], [], 0)),
]


@pytest.mark.parametrize("move", MOVES)
async def test_during_a_step_and_after_the_end_they_are_refused(opened, move):
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, GO)
        sequence.start_step(SHORT)
        with pytest.raises(ValueError, match="step"):
            move(sequence)
        sequence.close()
        with pytest.raises(ValueError, match="closed"):
            move(sequence)


# --- summaries ---------------------------------------------------------------------------------------------------


async def test_a_summary_is_text_whatever_the_tools_and_the_run_goes_on(opened):
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        await turn(sequence, GO)
        fork, other = sequence.fork("r2"), sequence.fork("r3")
        await give(other, Message(role="developer", content="Sum up."))
        *said, end = await step(other, StepSpec(ToolChoice("required"), max_tokens=40, is_summary=True))
        assert text(said) and not any(isinstance(delta, CallStart) for delta in said)
        assert end.usage.output_tokens > 0
        other.close()
        assert await turn(sequence, SUN) == await turn(fork, SUN)


# --- log-probabilities -------------------------------------------------------------------------------------------


async def test_logprobs_come_with_the_text_where_there_are_any_and_never_unasked(opened, folder):  # P58
    async with opened() as backend:
        sequence = backend.open_sequence(spec())
        await turn(sequence, GO)
        assert all(span.logprobs is msgspec.UNSET for span in sequence.tokens.since(0))
        seen = sequence.tokens.total
        await give(sequence, SUN)
        *said, _ = await step(sequence, StepSpec(ToolChoice("none"), max_tokens=20, top_logprobs=2))
        tokens = [token for delta in said if isinstance(delta, TextDelta) for token in delta.logprobs]
        if isinstance(backend, ScriptBackend | RawBackend | ChatBackend):
            assert text(said) and not tokens
            return
        span = list(sequence.tokens.since(seen))[-1]
        vocabulary = PromptFormat.load(folder).vocabulary
        pairs = zip(span.ids, span.logprobs, strict=True)
        shown = [logprob for id_, logprob in pairs if vocabulary.bytes_of(id_) and not vocabulary.is_control(id_)]
        assert [token.logprob for token in tokens] == shown
        assert len(span.ids) == 20 >= len(shown) > 9
        assert text(said) == b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
        for token in tokens:
            # greedy: what came is the likeliest
            assert len(token.top_logprobs) == 2
            assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert all(not delta.logprobs for delta in await step(sequence) if isinstance(delta, TextDelta))
        restored = backend.open_sequence(spec())
        restored.restore(past_of(sequence, [GO], [SUN], []))
        assert state(restored) == state(sequence)
