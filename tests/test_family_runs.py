"""A run of every family through a worker: a call that a grammar holds, a pause, and the next step behind its output.

The fake model's logits are noise, so all that makes sense in what it says is the grammar's doing.
"""

import sys
from functools import partial

import msgspec
import pytest
import trio

from engine.backends.base import CallDelta, CallEnd, CallStart, Delta, RunSpec, StepEnd, StepSpec, TextDelta, ToolChoice
from engine.backends.local import LocalModel, open_local_backend
from engine.backends.prompt import Prompt, PromptFormat
from engine.items import FunctionCallOutput, Message
from engine.toolspec import Tool
from tests.family_formats import NAMES, save_family
from tests.tiny import CONTEXT_WINDOW

FAKE = (sys.executable, "-m", "tests.fake_model")
PICK = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "twice": {"type": "boolean"}},
    "required": ["color", "twice"],
}
TOOL = Tool("function", "pick", "Pick one.", PICK)
SHORT = {"type": "json_schema", "name": "s", "schema": {"type": "boolean"}}


async def take(sequence, item, step: StepSpec) -> list[Delta]:
    sequence.commit(await sequence.prepare([item]))
    sequence.start_step(step)
    deltas: list[Delta] = []
    while not deltas or not isinstance(deltas[-1], StepEnd):
        deltas += await sequence.next_deltas()
    return deltas


@pytest.mark.parametrize("name", NAMES)
async def test_a_run_calls_pauses_and_answers(tmp_path, name):
    form = PromptFormat.load(save_family(tmp_path, name))
    model = LocalModel(folder=tmp_path, id="m", context_window=CONTEXT_WINDOW, stop_ids=form.stops_in_order)
    spec = RunSpec(
        response_id="r", model="m", tools=[TOOL], parallel_tool_calls=False, text_format=SHORT, temperature=0
    )
    with trio.fail_after(60):
        async with open_local_backend(model, partial(Prompt, form), max_kv_bytes=1 << 20, worker=FAKE) as backend:
            sequence = backend.open_sequence(spec)
            deltas = await take(sequence, Message(role="user", content="go"), StepSpec(ToolChoice("required")))
            start = deltas.index(CallStart("function_call", "pick"))
            arguments = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
            assert msgspec.json.decode(arguments).keys() == {"color", "twice"}
            assert deltas[start + 1 :].count(CallEnd()) == 1 and deltas[-1].reason == "stop"
            assert not any(isinstance(delta, TextDelta) for delta in deltas[start:])
            last = sequence.tokens.context()[-1]
            assert last == (form.vocabulary.added[form.family.call_stop] if form.family.call_stop else last)
            assert last in form.stop_ids

            output = FunctionCallOutput(call_id="c", output="done")
            deltas = await take(sequence, output, StepSpec(ToolChoice("none")))
            said = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
            assert said in ("true", "false") and deltas[-1].reason == "stop"
            assert sequence.tokens.context()[-1] == form.stops_in_order[0]
            # What was computed before the pause was not computed again.
            assert deltas[-1].timing.tokens_reused + deltas[-1].timing.tokens_prefilled == deltas[-1].usage.input_tokens
            assert deltas[-1].timing.tokens_reused > 0
