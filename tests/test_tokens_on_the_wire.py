"""Token events and refused content, on a real prompt: the script backend with a tokenizer."""

from functools import partial
from pathlib import Path

import pytest

from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext
from tests.served import TWO_CALLS, open_served, pending
from tests.tiny import STOP_ID, save_format


@pytest.fixture
def form(tmp_path: Path) -> PromptFormat:
    return PromptFormat.load(save_format(tmp_path))


def text_of(form: PromptFormat, ids: list[int]) -> str:
    return b"".join(map(form.vocabulary.bytes_of, ids)).decode()


async def test_token_events_give_the_whole_context_once(form):  # P30
    backend = ScriptBackend([parse_scenario(TWO_CALLS)], partial(PromptContext, form))
    async with open_served(backend=backend) as server, server.connect() as client:
        await client.create(input="hello <|im_end|> world", include=["response.tokens"])
        first = await client.step()
        keys = pending(first)
        assert first[-2]["type"] == "response.tokens"
        await client.answer((keys[0], "out A"), (keys[1], "out B"))
        second = await client.step()
        spans = first[-2]["spans"] + second[-2]["spans"]
        # No gap, no overlap: what was given and what was sampled, each id once, in order.
        assert [span["offset"] for span in spans] == [
            sum(len(earlier["ids"]) for earlier in spans[:index]) for index in range(len(spans))
        ]
        assert {span["segment"] for span in spans} == {0}
        given = "".join(text_of(form, span["ids"]) for span in spans if not span["sampled"])
        sampled = "".join(text_of(form, span["ids"]) for span in spans if span["sampled"])
        assert given.index("hello") < given.index("out A") < given.index("out B")
        assert "Done with out B." in sampled
        # What the user typed is text; it ends nobody's turn.
        ids = next(span["ids"] for span in spans if not span["sampled"])
        assert ids.count(STOP_ID) == text_of(form, ids).count("<|im_end|>") - 1
        # The last step's input is all that was there before it sampled.
        usage = second[-1]["response"]["usage"]
        assert usage["output_tokens"] == len(spans[-1]["ids"])
        assert usage["total_tokens"] == sum(len(span["ids"]) for span in spans)


async def test_an_image_on_a_text_model_is_refused_by_path(form):  # P40
    backend = ScriptBackend([parse_scenario(TWO_CALLS)], partial(PromptContext, form))
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    async with open_served(backend=backend) as server, server.connect() as client:
        await client.create(input=[{"role": "user", "content": [{"type": "input_text", "text": "see"}, image]}])
        error = await client.receive()
        assert (error["status"], error["error"]["param"]) == (400, "input[0].content[1]")
        await client.create()
        keys = pending(await client.step())
        items = [
            {"type": "function_call_output", "call_id": keys[0], "output": "a"},
            {"type": "function_call_output", "call_id": keys[1], "output": [image]},
        ]
        await client.send("response.append", input=items)
        assert (await client.receive())["error"]["param"] == "input[1].output[0]"
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"
