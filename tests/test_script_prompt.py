"""Scripted runs over a real tokenizer: the log grows by what is new, and the control makes everything again."""

from functools import partial

import pytest

from engine import items
from engine.backends.base import CallStart, Past, RunSpec, StepEnd, StepSpec
from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.backends.script_prompt import PromptContext, UncachedContext, own_items
from engine.content import InputImage
from engine.errors import RequestError
from engine.items import FunctionCallOutput, Message
from engine.toolspec import Tool
from tests.tiny import save_format

SCENARIO = """
steps:
  - repeat:
      times: 100
      steps: [{reasoning: hm, text: I look., call: {name: look, arguments: {n: 1}}}]
"""
LOOK = Tool("function", "look", parameters={"type": "object"})
GO = Message(role="user", content="go and see")


@pytest.fixture(scope="module")
def form(tmp_path_factory) -> PromptFormat:
    return PromptFormat.load(save_format(tmp_path_factory.mktemp("format")), context_window=1 << 20)


def opened(
    form: PromptFormat, kind: type[PromptContext] | type[UncachedContext], scenario: str = SCENARIO
) -> ScriptSequence:
    backend = ScriptBackend([parse_scenario(scenario, "test.yaml")], partial(kind, form))
    return backend.open_sequence(RunSpec(response_id="r", model="test", tools=[LOOK]))


async def turn(sequence: ScriptSequence, *given: items.Item) -> StepEnd:
    sequence.commit(await sequence.prepare(given))
    sequence.start_step(StepSpec())
    while not isinstance(end := (await sequence.next_deltas())[-1], StepEnd):
        pass
    return end


def written(form: PromptFormat, sequence: ScriptSequence) -> str:
    return b"".join(map(form.vocabulary.bytes_of, sequence.tokens.context())).decode()


def output(text: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id="c", output=text)


async def test_the_log_holds_what_the_model_would_have_seen_and_written(form):
    sequence = opened(form, PromptContext)
    await turn(sequence, GO)
    before = sequence.num_context_tokens
    extension = await sequence.prepare([output("far")])
    sequence.commit(extension)
    assert sequence.num_context_tokens == before + extension.num_tokens == len(sequence.tokens)
    assert written(form, sequence).endswith(
        "<|im_start|>user\ngo and see<|im_end|>\n<|im_start|>assistant\n<think>hm</think>I look.\n<tool_call>\n"
        '{"name": "look", "arguments": {"n": 1}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>{form.family.output_role}\n<tool_response>\nfar\n</tool_response><|im_end|>\n"
    )
    assert [span.sampled for span in sequence.tokens.since(0)] == [False, True, False]


async def test_a_step_that_was_cut_has_no_stop_token(form):
    sequence = opened(form, PromptContext, "steps: [{text: a b c}]")
    sequence.commit(await sequence.prepare([GO]))
    sequence.start_step(StepSpec(max_tokens=2))
    assert [len(await sequence.next_deltas()) for _ in range(3)] == [1, 1, 1]
    assert written(form, sequence).endswith("<|im_start|>assistant\na b")


async def test_a_call_that_was_cut_is_not_closed(form):
    sequence = opened(form, PromptContext)
    sequence.commit(await sequence.prepare([GO]))
    sequence.start_step(StepSpec(max_tokens=4))
    assert sum([len(await sequence.next_deltas()) for _ in range(2)]) == 5
    sequence.cancel_step()
    assert written(form, sequence).endswith('</think>I look.\n<tool_call>\n{"name": "look", "arguments": {"n":')


async def test_a_turn_touches_only_what_is_new_and_the_control_touches_everything(form):
    growth = {}
    for kind in (PromptContext, UncachedContext):
        sequence = opened(form, kind)
        ends = [await turn(sequence, GO)] + [await turn(sequence, output("far")) for _ in range(20)]
        growth[kind] = ends[-1].timing.tokens_new / ends[1].timing.tokens_new
        assert ends[-1].timing.tokens_reused == (
            0 if kind is UncachedContext else ends[-1].usage.input_tokens_details.cached_tokens
        )
    assert growth[PromptContext] == 1
    assert growth[UncachedContext] > 4


async def test_the_control_counts_every_item_it_went_through(form):
    sequence = opened(form, UncachedContext)
    await turn(sequence, GO)
    extension = await sequence.prepare([output("far")])
    # the input, the model's own reasoning, text and call, and the new output
    assert (extension.num_items, sequence.work.num_items) == (5, 1 + 5)
    sequence.commit(extension)
    assert sequence.num_context_tokens == extension.num_tokens == len(extension.token_ids)


async def test_the_control_forks_and_restarts_but_cannot_be_restored(form):
    sequence, new = opened(form, UncachedContext), opened(form, UncachedContext)
    await turn(sequence, GO)
    fork = sequence.fork("r2")
    await turn(fork, output("far"))
    assert (await sequence.prepare([GO])).num_items == 5
    fork.restart()
    assert (await fork.prepare([GO])).token_ids == (await new.prepare([GO])).token_ids
    with pytest.raises(ValueError, match="token cache"):
        new.restore(Past([], [[GO]], 0))


async def test_both_make_the_same_context_where_nothing_depends_on_the_cut(form):
    lengths = []
    for kind in (PromptContext, UncachedContext):
        sequence = opened(form, kind, "steps: [{text: a b c}]")
        await turn(sequence, GO)
        await turn(sequence, GO)
        lengths.append(written(form, sequence))
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("kind", [PromptContext, UncachedContext])
async def test_an_extension_for_another_length_is_refused(form, kind):
    sequence = opened(form, kind)
    first, second = await sequence.prepare([GO]), await sequence.prepare([GO])
    sequence.commit(first)
    with pytest.raises(ValueError, match="prepared at 0 tokens"):
        sequence.commit(second)


async def test_content_that_the_model_cannot_take_is_refused_with_its_path(form):
    image = Message(role="user", content=[InputImage(image_url="data:")])
    with pytest.raises(RequestError) as error:
        await opened(form, PromptContext).prepare([GO, image])
    assert error.value.param == "[1].content[0]"


async def test_a_context_window_of_the_scenario_holds_for_tokens(form):
    sequence = opened(form, PromptContext, "context_window: 30\nsteps: [{text: a}]")
    with pytest.raises(RequestError, match="30 tokens"):
        await sequence.prepare([GO])


def test_a_call_cut_before_its_arguments_is_an_item_too(form):
    (call,) = own_items([CallStart("custom_tool_call", "note", "desk")])
    assert (call.name, call.namespace, call.input) == ("note", "desk", "")
