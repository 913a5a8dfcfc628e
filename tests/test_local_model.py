"""The default model behind the seam, with the real prompt: answers, calls, pauses. Needs the model and torch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from engine.backends.base import (
    Backend,
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
from engine.backends.loading import load
from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.commands.backend import choose_backend
from engine.items import Item, decode_item
from engine.settings import Settings
from engine.toolspec import Tool

pytestmark = pytest.mark.model

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@asynccontextmanager
async def opened() -> AsyncIterator[Backend]:
    with trio.fail_after(300):
        async with choose_backend(Settings(dtype="float32", threads=1), lambda what, fraction: None) as backend:
            yield backend


def item(**fields: object) -> Item:
    return decode_item(msgspec.json.encode(fields))


async def take(sequence: Sequence, items: list[Item], step: StepSpec) -> list[Delta]:
    """Give items and sample; the step's deltas."""
    sequence.commit(await sequence.prepare(items))
    sequence.start_step(step)
    deltas: list[Delta] = []
    while not deltas or not isinstance(deltas[-1], StepEnd):
        deltas += await sequence.next_deltas()
    return deltas


def text(deltas: list[Delta], kind: type[TextDelta] | type[CallDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


async def test_it_answers_and_calls_and_goes_on_where_it_paused():
    async with opened() as backend:
        model = backend.models()[0].id
        sequence = backend.open_sequence(RunSpec(response_id="r1", model=model))
        question = item(type="message", role="user", content="What is the capital of France?")
        deltas = await take(sequence, [question], StepSpec(max_tokens=40))
        assert "Paris" in text(deltas, TextDelta)
        assert deltas[-1].reason == "stop"

        weather = Tool("function", "get_weather", "The weather of a city.", WEATHER)
        caller = backend.open_sequence(
            RunSpec(response_id="r2", model=model, tools=[weather], parallel_tool_calls=False)
        )
        question = item(type="message", role="user", content="What is the weather in Paris, in celsius?")
        deltas = await take(caller, [question], StepSpec(ToolChoice("required"), max_tokens=100))
        assert [delta for delta in deltas if isinstance(delta, CallStart)] == [
            CallStart("function_call", "get_weather")
        ]
        assert CallEnd() in deltas
        assert msgspec.json.decode(text(deltas, CallDelta)).keys() == {"city", "unit"}
        length = len(caller.tokens)

        output = item(type="function_call_output", call_id="c1", output="18 degrees, sunny")
        deltas = await take(caller, [output], StepSpec(ToolChoice("none"), max_tokens=30))
        timing = deltas[-1].timing
        assert timing.tokens_reused + timing.tokens_prefilled == deltas[-1].usage.input_tokens
        assert timing.tokens_reused > length - 16  # what the grammar forced last is computed with the output
        base, ids = deltas[-1].usage.input_tokens, list(caller.tokens.context())
    # What two steps and a pause have made is what one prefill of the token log makes.
    assert ids[base:] == greedy(ids[:base], len(ids) - base)


def greedy(ids: list[int], count: int) -> list[int]:
    """The model alone, in this process."""
    folder = resolve(DEFAULT_MODEL, lambda *_: None)
    model = load(folder, dtype="float32", threads=1, device="cpu", progress=lambda *_: None)
    kv, fed, drawn = model.new_kv(), ids, list[int]()
    while len(drawn) < count:
        fed = [int(model.step([(kv, fed)])[0].argmax())]
        drawn += fed
    return drawn


def test_a_token_comes_out_the_same_in_any_batch_bit_for_bit():
    model = load(
        resolve(DEFAULT_MODEL, lambda *_: None), dtype="bfloat16", threads=2, device="cpu", progress=lambda *_: None
    )
    ids = list(range(1000, 1080))

    def play(num_others: int) -> list[bytes]:
        kv, others, rows = model.new_kv(), [model.new_kv() for _ in range(num_others)], []
        for step, new in enumerate([ids[:64], *([id_] for id_ in ids[64:70])]):
            beside = [(other, ids[step : step + 1 + 50 * (step == 0)]) for other in others]
            rows.append(model.step([*beside, (kv, new)])[-1].tobytes())
        return rows

    assert play(0) == play(1) == play(7)
