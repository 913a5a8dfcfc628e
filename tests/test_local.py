"""local.py, token_sequence.py and worker_link.py over a real worker process, most with a model that needs no torch.

The fake model's logits depend on every id and its place, so what it says proves which context it had.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio

from engine.backends.base import CallEnd, Past, StepEnd, StepSpec, TextDelta
from engine.backends.constraint import Constraint
from engine.backends.frames import Command
from engine.backends.local import LocalBackend, open_local_backend
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.token_sequence import TokenSequence
from engine.backends.vocabulary import Span
from engine.errors import BackendError, NotFound, RequestError
from engine.items import FunctionCallOutput, Message
from engine.toolspec import Tool
from tests.fake_model import BYTES_PER_TOKEN, greedy
from tests.local_model import MODEL_ID, NumbersPrompt, local_model, message, spec
from tests.tiny import HERMES, STOP_ID, save_format, save_tokenizer
from tests.tiny_model import save_model

REAL = (sys.executable, "-m", "engine.backends.worker")
FAKE = (sys.executable, "-m", "tests.fake_model")
PROMPT = list(range(100, 160))
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    save_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    return folder


@asynccontextmanager
async def opened(
    folder, *, max_tokens: int = 100_000, window: int = 4096, constraint: Constraint | None = None, **fields
) -> AsyncIterator[LocalBackend]:
    """A backend over the fake model, whose KV budget is counted in tokens."""
    options = {"worker": FAKE, "max_kv_bytes": max_tokens * BYTES_PER_TOKEN} | fields
    model = local_model(folder, context_window=window)
    with trio.fail_after(TIMEOUT_S):
        async with open_local_backend(model, lambda _: NumbersPrompt(constraint), **options) as backend:
            yield backend


async def give(sequence: TokenSequence, ids: Sequence[int]) -> None:
    sequence.commit(await sequence.prepare([message(ids)]))


async def finish(sequence: TokenSequence) -> tuple[list[int], StepEnd]:
    """The rest of a step: ids as the deltas tell them, and its end."""
    text = ""
    while True:
        for delta in await sequence.next_deltas():
            match delta:
                case TextDelta():
                    text += delta.text
                case StepEnd():
                    return [int(word) for word in text.split()], delta


async def step(sequence: TokenSequence, max_tokens: int | None = 8) -> tuple[list[int], StepEnd]:
    sequence.start_step(StepSpec(max_tokens=max_tokens))
    return await finish(sequence)


def kill(backend: LocalBackend) -> None:
    assert backend.worker_pid
    os.kill(backend.worker_pid, signal.SIGKILL)


async def test_a_step_before_the_model_is_loaded_waits_for_it(folder):
    said = []
    async with opened(folder, progress=lambda what, fraction: said.append((what, fraction))) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        assert not backend.is_ready
        ids, end = await step(sequence)
        assert backend.is_ready
        assert ids == greedy([*PROMPT, 1], 8)
        assert (end.reason, end.usage.input_tokens, end.usage.output_tokens) == ("max_output_tokens", 61, 8)
        assert said == [("Loading the model: weights", 1.0)]


async def test_a_paused_run_computes_only_what_is_new(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        context: list[int] = []
        for given in (PROMPT, [200, 201], [210]):
            await give(sequence, given)
            ids, end = await step(sequence)
            before, context = len(context), [*context, *given, 1]
            assert ids == greedy(context, 8)
            assert end.timing.tokens_new == len(given) + 1
            # all but the last id of the step before, whose KV nobody had needed until now
            assert end.timing.tokens_reused == max(0, before - 1) == end.usage.input_tokens_details.cached_tokens
            assert end.timing.tokens_reused + end.timing.tokens_prefilled == len(context) == end.usage.input_tokens
            context += ids
        assert list(sequence.tokens.context()) == context
        assert [span.sampled for span in sequence.tokens.since(0)] == [False, True] * 3


async def test_a_worker_killed_during_a_pause_changes_nothing_but_the_time(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec(temperature=1.0, seed=5))
        undisturbed = backend.open_sequence(spec(temperature=1.0, seed=5))
        await give(undisturbed, PROMPT)
        expected = (await step(undisturbed))[0]
        await give(undisturbed, [200])
        expected += (await step(undisturbed))[0]

        await give(sequence, PROMPT)
        ids = (await step(sequence))[0]
        kill(backend)
        await give(sequence, [200])
        more, end = await step(sequence)
        assert ids + more == expected
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (0, 61 + 8 + 2)
        assert list(sequence.tokens.context()) == list(undisturbed.tokens.context())


async def test_a_worker_killed_during_a_step_is_replaced_and_the_step_goes_on(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec(max_tokens=2000))
        await sequence.next_deltas()
        kill(backend)
        ids, end = await finish(sequence)
        sampled = list(sequence.tokens.context())[61:]
        assert sampled == greedy([*PROMPT, 1], 2000)
        assert ids == sampled[-len(ids) :]
        assert (end.usage.input_tokens, end.usage.output_tokens) == (61, 2000)


async def test_a_step_that_loses_two_workers_fails_and_another_sequence_goes_on(folder):
    async with opened(folder) as backend:
        sequence, other = backend.open_sequence(spec()), backend.open_sequence(spec())
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec(max_tokens=4000))
        for _ in range(2):
            await backend.wait_ready()
            await sequence.next_deltas()
            kill(backend)
            while backend.is_ready:
                await trio.lowlevel.checkpoint()
        with pytest.raises(BackendError, match="worker ended"):
            await finish(sequence)
        sequence.close()
        await give(other, PROMPT)
        assert (await step(other))[0] == greedy([*PROMPT, 1], 8)


async def test_two_sequences_sample_at_the_same_time(folder):
    async with opened(folder) as backend:
        ends: dict[int, list[int]] = {}

        async def run(first: int) -> None:
            sequence = backend.open_sequence(spec())
            await give(sequence, [first, *PROMPT])
            ends[first] = (await step(sequence, 200))[0]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, 10)
            nursery.start_soon(run, 11)
        assert ends == {first: greedy([first, *PROMPT, 1], 200) for first in (10, 11)}


async def test_a_cancelled_step_leaves_what_was_sampled_and_the_next_goes_on_from_there(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec(max_tokens=4000))
        await sequence.next_deltas()
        sequence.cancel_step()
        context = list(sequence.tokens.context())
        assert context == [*PROMPT, 1, *greedy([*PROMPT, 1], len(context) - 61)]
        await give(sequence, [200])
        assert (await step(sequence))[0] == greedy([*context, 200, 1], 8)


async def test_a_step_cancelled_during_prefill_is_as_if_it_had_not_been(folder):
    async with opened(folder) as backend:
        sequence, other = backend.open_sequence(spec()), backend.open_sequence(spec())
        await backend.wait_ready()
        await give(sequence, PROMPT * 50)
        sequence.start_step(StepSpec(max_tokens=10))
        sequence.cancel_step()
        await give(other, PROMPT)
        assert (await step(other))[0] == greedy([*PROMPT, 1], 8)
        assert len(sequence.tokens) == 3001
        assert (await step(sequence))[0] == greedy([*PROMPT * 50, 1, 1], 8)


async def test_a_new_run_adopts_the_longest_prefix(folder):
    async with opened(folder) as backend:
        first = backend.open_sequence(spec())
        await give(first, PROMPT)
        ids, _ = await step(first)
        first.close()
        second = backend.open_sequence(spec())
        await give(second, [*PROMPT, 1, *ids, 200])
        more, end = await step(second)
        assert more == greedy([*PROMPT, 1, *ids, 200, 1], 8)
        assert end.usage.input_tokens_details.cached_tokens == 68  # the last sampled id had no KV
        third = backend.open_sequence(spec())
        await give(third, [*PROMPT[:40], 7])
        more, end = await step(third)  # from the second, which is still open
        assert more == greedy([*PROMPT[:40], 7, 1], 8)
        assert end.usage.input_tokens_details.cached_tokens == 39


async def test_a_fork_shares_the_kv_and_both_keep_their_own(folder):
    async with opened(folder) as backend:
        parent = backend.open_sequence(spec())
        await give(parent, PROMPT)
        context = [*PROMPT, 1, *(await step(parent))[0]]
        fork = parent.fork("resp_2")
        for sequence, given in ((fork, 200), (parent, 201)):
            await give(sequence, [given])
            ids, end = await step(sequence)
            assert ids == greedy([*context, given, 1], 8)
            assert end.usage.input_tokens_details.cached_tokens == 68  # the last sampled id had no KV
            assert (end.timing.tokens_new, end.timing.tokens_prefilled) == (2, 3)
        fork.close()
        await give(parent, [202])
        assert (await step(parent))[1].timing.tokens_prefilled == 3


async def test_forks_draw_their_own_way_unless_the_run_was_given_a_seed(folder):
    async with opened(folder) as backend:
        for seed, differs in ((5, False), (None, True)):
            parent = backend.open_sequence(spec(temperature=1.0, seed=seed))
            await give(parent, PROMPT)
            forks = [parent.fork(f"resp_{number}") for number in range(2)]
            first, second = [(await step(fork, 50))[0] for fork in forks]
            assert (first != second) is differs


async def test_a_restarted_run_computes_what_its_contexts_do_not_share(folder):
    async with opened(folder) as backend:
        sequence, other = backend.open_sequence(spec()), backend.open_sequence(spec())
        await give(sequence, PROMPT)
        await step(sequence)
        sequence.restart()
        assert (sequence.num_context_tokens, sequence.tokens.segment) == (0, 1)
        await give(sequence, [*PROMPT[:40], 7])
        ids, end = await step(sequence)
        assert ids == greedy([*PROMPT[:40], 7, 1], 8)
        assert (end.usage.input_tokens, end.timing.tokens_reused, end.timing.tokens_new) == (42, 40, 42)
        kill(backend)
        await give(sequence, [8])
        assert (await step(sequence))[0] == greedy([*PROMPT[:40], 7, 1, *ids, 8, 1], 8)
        await give(other, [*PROMPT[:40], 9])
        assert (await step(other))[1].timing.tokens_reused == 39


async def test_an_interrupted_step_keeps_what_it_told_and_nothing_else(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        for given in (PROMPT, [200]):
            await give(sequence, given)
            sequence.start_step(StepSpec(max_tokens=1500))
            told = list(await sequence.next_deltas())
            *rest, end = sequence.interrupt()
            words = "".join(delta.text for delta in [*told, *rest]).split()
            span = list(sequence.tokens.since(0))[-1]
            assert (
                list(map(int, words)) == span.ids == greedy(list(sequence.tokens.context())[: span.offset], len(words))
            )
            assert (end.reason, end.usage.input_tokens) == ("stop", span.offset)
            assert end.usage.output_tokens == len(words) > 0
            assert end.timing.tokens_reused + end.timing.tokens_prefilled == span.offset
            assert end.timing.prefill_ms > 0
            total = sequence.tokens.total
        assert end.timing.tokens_reused > 60
        other = backend.open_sequence(spec())
        await give(other, PROMPT)
        await step(other)  # meanwhile the worker had time to say more of the step
        assert sequence.tokens.total == total
        await give(sequence, [201])
        context = [*sequence.tokens.context(), 1]
        assert (await step(sequence))[0] == greedy(context, 8)


async def test_a_step_interrupted_before_its_first_token_has_said_nothing(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec(max_tokens=10))
        (end,) = sequence.interrupt()
        assert (end.reason, end.usage.input_tokens, end.usage.output_tokens) == ("stop", 61, 0)
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled, end.timing.sampling_ms) == (0, 0, 0)
        await give(sequence, [200])
        assert (await step(sequence))[0] == greedy([*PROMPT, 1, 200, 1], 8)


async def test_a_failed_step_cannot_be_interrupted(folder):
    async with opened(folder, constraint=Constraint("start: nothing")) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec())
        with pytest.raises(RequestError):
            await finish(sequence)
        with pytest.raises(RequestError):
            sequence.interrupt()


async def test_a_restored_run_is_computed_again_and_goes_on_as_it_would_have(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec(temperature=1.0, seed=5))
        await give(sequence, [7])
        await step(sequence)
        sequence.restart()
        await give(sequence, PROMPT)
        await step(sequence)
        past = Past(list(sequence.tokens.since(0)), [], 0)
        kill(backend)
        restored = backend.open_sequence(spec(temperature=1.0, seed=5))
        restored.restore(past)
        ends = []
        for one in (sequence, restored):
            await give(one, [200])
            ends.append(await step(one))
        assert ends[0][0] == ends[1][0]
        assert ends[0][1].usage.input_tokens == ends[1][1].usage.input_tokens
        assert ends[1][1].timing.tokens_new == 2
        assert list(restored.tokens.since(0)) == list(sequence.tokens.since(0))


TOOL = Tool("function", "look", parameters={"type": "object"})
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("tags", [True, False])  # held by a grammar once the tag has come; held from the beginning
@pytest.mark.parametrize("top_logprobs", [None, 0])
async def test_without_parallel_calls_a_step_ends_with_the_first_one(tmp_path, tags, top_logprobs):
    form = PromptFormat.load(save_format(tmp_path, HERMES, tags=tags))
    written = form.encode([Span(f"Well.{CALL}\n{CALL}", True)])
    (tmp_path / "says.json").write_text(json.dumps([*written, STOP_ID]))
    go, output = Message(role="user", content="go"), FunctionCallOutput(call_id="c", output="done")
    with trio.fail_after(TIMEOUT_S):
        async with open_local_backend(
            local_model(tmp_path), partial(Prompt, form), max_kv_bytes=1 << 20, worker=FAKE
        ) as backend:
            for parallel in (True, False):
                sequence = backend.open_sequence(spec(tools=[TOOL], parallel_tool_calls=parallel))
                for item in (go, output):
                    sequence.commit(await sequence.prepare([item]))
                    sequence.start_step(StepSpec(top_logprobs=top_logprobs))
                    deltas = []
                    while not deltas or not isinstance(deltas[-1], StepEnd):
                        deltas += await sequence.next_deltas()
                    assert deltas.count(CallEnd()) == (2 if parallel else 1)
                    assert deltas[-1].reason == "stop"
                    span = list(sequence.tokens.since(0))[-1]
                    only = [*written[: len(span.ids) - (not tags)], *([] if tags else [STOP_ID])]  # a grammar's end
                    assert span.ids == ([*written, STOP_ID] if parallel else only)
                    assert deltas[-1].usage.output_tokens == len(span.ids)
                    assert deltas[-1].usage.total_tokens == sequence.num_context_tokens
                    assert (span.logprobs is msgspec.UNSET) == (top_logprobs is None)
                    if not parallel:
                        said = b"".join(map(form.vocabulary.bytes_of, span.ids)).decode()
                        assert said.removesuffix("<|im_end|>") == f"Well.{CALL}"


async def test_paused_runs_lose_their_kv_under_pressure_and_never_their_tokens(folder):
    async with opened(folder, max_tokens=150) as backend:
        sequences = [backend.open_sequence(spec()) for _ in range(3)]
        contexts = []
        for number, sequence in enumerate(sequences):
            given = [number + 10, *PROMPT]
            await give(sequence, given)
            contexts.append([*given, 1, *(await step(sequence))[0]])
        reused = []
        for sequence, context in zip(sequences, contexts, strict=True):
            await give(sequence, [200])
            ids, end = await step(sequence)
            assert ids == greedy([*context, 200, 1], 8)
            reused.append((end.timing.tokens_reused, end.timing.tokens_evicted))
        assert reused[0] == (0, 70)  # paused for longest when the third began
        load = backend.load()
        assert (load.running, load.waiting, load.paused) == (0, 0, 3)
        assert load.kv_tokens <= 150
        assert load.tokens_evicted > sum(evicted for _, evicted in reused) > 0  # some were not asked again
        assert load.tokens_reused == sum(count for count, _ in reused)
        sequences[0].close()
        assert backend.load().paused == 2


def numbers(ids: Sequence[int]) -> list[FunctionCallOutput]:
    """An output that renders to these ids."""
    return [FunctionCallOutput(call_id="c", output=" ".join(map(str, ids)))]


async def test_what_is_foreseen_is_computed_early_and_what_was_not_true_costs_time_only(folder, monkeypatch):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        context = [*PROMPT, 1, *(await step(sequence))[0]]
        sent: list[Command] = []
        send = backend._link.send
        monkeypatch.setattr(backend._link, "send", lambda commands: [sent.extend(commands), send(commands)])
        for came, num_right in [([*PROMPT, 200], 61), ([*PROMPT[:40], 200], 40), ([7, 8], 0)]:
            sent.clear()
            for count in (10, 35, 50, 60, 70):  # the first and the third are not worth a step of their own
                await sequence.foresee(numbers([*PROMPT, *range(200, 210)][:count]))
            assert list(sequence.tokens.context()) == context
            await give(sequence, came)
            length = len(context)
            assert [(command.base - length, len(command.ids)) for command in sent] == [
                (0, 35),
                (35, 35),
                (num_right, len(came) - num_right),
            ]
            ids, end = await step(sequence)
            context += [*came, 1]
            assert ids == greedy(context, 8)
            context += ids
            assert list(sequence.tokens.context()) == context
            assert end.timing.tokens_prefilled == len(came) + 2


async def test_what_was_foreseen_by_somebody_who_lost_it_is_no_loss(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        context = [*PROMPT, 1, *(await step(sequence))[0]]
        await sequence.foresee(numbers(PROMPT))
        kill(backend)
        await give(sequence, PROMPT)
        assert (await step(sequence))[0] == greedy([*context, *PROMPT, 1], 8)
        sequence.close()
        await sequence.foresee(numbers(PROMPT * 2))


async def test_runs_that_begin_alike_and_together_prefill_it_once(folder):
    async with opened(folder, max_step_ms=1) as backend:
        await backend.wait_ready()
        sequences = [backend.open_sequence(spec()) for _ in range(4)]
        for number, sequence in enumerate(sequences):
            await give(sequence, [*PROMPT, 200 + number])
            sequence.start_step(StepSpec(max_tokens=4))
        prefilled = []
        for number, sequence in enumerate(sequences):
            ids, end = await finish(sequence)
            assert ids == greedy([*PROMPT, 200 + number, 1], 4)
            prefilled.append(end.timing.tokens_prefilled)
        assert prefilled == [62, 3, 3, 3]


async def test_a_step_waits_for_room_beside_those_that_run(folder):
    async with opened(folder, max_tokens=180) as backend:
        first, second = backend.open_sequence(spec()), backend.open_sequence(spec())
        await backend.wait_ready()
        for sequence in (first, second):
            await give(sequence, PROMPT)
        first.start_step(StepSpec(max_tokens=100))
        second.start_step(StepSpec(max_tokens=100))
        assert (backend.load().running, backend.load().waiting) == (1, 1)
        ids, end = await finish(first)
        assert ids == greedy([*PROMPT, 1], 100)
        ids, waited = await finish(second)
        assert ids == greedy([*PROMPT, 1], 100)
        assert waited.timing.queue_ms > end.timing.queue_ms


async def test_the_step_that_came_last_is_sent_back_when_all_have_grown_too_much(folder):
    async with opened(folder, max_tokens=300) as backend:
        sequences = [backend.open_sequence(spec()) for _ in range(3)]
        await backend.wait_ready()
        for number, sequence in enumerate(sequences):
            await give(sequence, PROMPT[number:])
            sequence.start_step(StepSpec(max_tokens=150))
        assert (backend.load().running, backend.load().waiting) == (3, 0)
        evicted = []
        for number, sequence in enumerate(sequences):
            ids, end = await finish(sequence)
            assert ids == greedy([*PROMPT[number:], 1], 150)
            evicted.append(end.timing.tokens_evicted)
        assert evicted[0] == 0 < evicted[1]


async def test_a_cancelled_step_leaves_its_place_to_the_next(folder):
    async with opened(folder, max_tokens=100) as backend:
        sequences = [backend.open_sequence(spec()) for _ in range(3)]
        await backend.wait_ready()
        for sequence in sequences:
            await give(sequence, PROMPT)
            sequence.start_step(StepSpec(max_tokens=20))
        sequences[1].cancel_step()
        sequences[0].cancel_step()
        assert (backend.load().running, backend.load().waiting) == (1, 0)
        assert (await finish(sequences[2]))[0] == greedy([*PROMPT, 1], 20)


async def test_the_worker_is_told_how_long_a_step_may_be(folder):
    async with opened(folder, max_step_ms=1) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        assert (await step(sequence))[0] == greedy([*PROMPT, 1], 8)


async def test_a_context_beyond_the_budget_is_sampled_all_the_same(folder):
    async with opened(folder, max_tokens=10) as backend:
        sequence = backend.open_sequence(spec())
        await backend.wait_ready()
        for _ in range(2):
            await give(sequence, PROMPT)
            context = [*sequence.tokens.context(), 1]
            assert (await step(sequence))[0] == greedy(context, 8)


async def test_the_context_window_ends_a_step(folder):
    async with opened(folder, window=64) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        ids, end = await step(sequence, None)
        assert (len(ids), end.reason) == (3, "context_length_exceeded")
        ids, end = await step(sequence, 5)
        assert (ids, end.reason) == ([], "context_length_exceeded")


async def test_a_grammar_is_obeyed_and_ends_the_step(folder):
    async with opened(folder, constraint=Constraint('start: "<" "call>" ("a" | "b") ">"')) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        ids, end = await step(sequence, None)
        assert end.reason == "stop"
        assert ids[-1] == 2
        await give(sequence, [200])
        assert (await step(sequence, None))[1].timing.tokens_prefilled == 5  # what came with the last draw (3), 200, 1


async def test_a_bad_grammar_fails_the_step_and_not_the_backend(folder):
    async with opened(folder, constraint=Constraint("start: nothing")) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        with pytest.raises(RequestError, match="cannot be held"):
            await step(sequence)
        sequence.close()
        assert backend.is_ready


async def test_a_model_that_cannot_be_loaded_fails_those_who_wait(tmp_path):
    async with opened(tmp_path) as backend:
        sequence = backend.open_sequence(spec())
        await give(sequence, PROMPT)
        with pytest.raises(BackendError, match="could not be loaded"):
            await step(sequence)
        with pytest.raises(BackendError, match="could not be loaded: FileNotFoundError"):
            await backend.wait_ready()


async def test_misuse_is_refused(folder):
    async with opened(folder) as backend:
        sequence = backend.open_sequence(spec())
        with pytest.raises(ValueError, match="no step"):
            await sequence.next_deltas()
        await give(sequence, PROMPT)
        sequence.start_step(StepSpec(max_tokens=8))
        with pytest.raises(ValueError, match="under way"):
            sequence.start_step(StepSpec())
        sequence.close()
        sequence.close()
        with pytest.raises(ValueError, match="closed"):
            sequence.start_step(StepSpec())


async def test_the_model_is_named_and_no_other_is_served(folder):
    async with opened(folder) as backend:
        assert [model.id for model in backend.models()] == [MODEL_ID]
        with pytest.raises(NotFound) as caught:
            backend.open_sequence(spec().__class__(response_id="r", model="gpt-5"))
        assert caught.value.code == "model_not_found"


async def test_the_worker_ends_with_the_block(folder):
    async with opened(folder) as backend:
        await backend.wait_ready()
        pid = backend.worker_pid
        assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_real_model_pauses_resumes_and_survives_a_kill(tmp_path):
    save_model(tmp_path)
    async with opened(tmp_path, worker=REAL, dtype="float32", threads=1) as backend:
        paused, whole = backend.open_sequence(spec()), backend.open_sequence(spec())
        await give(paused, PROMPT)
        await step(paused)
        await give(paused, [200, 201])
        _, end = await step(paused)
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (68, 4)
        kill(backend)
        await give(paused, [210])
        last, end = await step(paused)
        assert (end.timing.tokens_reused, end.timing.tokens_prefilled) == (0, len(paused.tokens) - 8)
        await give(whole, list(paused.tokens.context())[: -8 - 1])
        assert (await step(whole))[0] == last
        assert list(whole.tokens.context()) == list(paused.tokens.context())
