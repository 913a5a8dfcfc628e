"""Faults that users met in other servers' engines, as behaviours of the local one, whole: from frames to a worker.

The model says what a test dictates, in the words of each family's own template. Each test names the public report.
"""

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.backends.local import LocalBackend, LocalModel, open_local_backend
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.vocabulary import Span
from engine.store_fake import MemoryStore
from tests.fake_model import BYTES_PER_TOKEN
from tests.family_formats import NAMES, save_family
from tests.served import Served, open_served, pending
from tests.test_call_syntaxes import coder, deepseek, fenced, glm, message, to_function
from tests.test_known_faults import HISTORY

Json = dict[str, Any]
WINDOW = 16_384  # twenty tools are long in a tokenizer of 300 ids
FAKE = (sys.executable, "-m", "tests.fake_model")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TWENTY = [
    *({"type": "function", "name": f"tool_{number}", "parameters": CITY} for number in range(18)),
    {"type": "custom", "name": "python"},
    {"type": "namespace", "name": "files", "description": "", "tools": [
        {"type": "function", "name": "find", "parameters": CITY},
    ]},
]  # fmt: skip
OSLO, ROME, CODE = '{"city": "Oslo"}', '{"city": "Rome"}', json.dumps({"input": "1 + 1"})
CALLS = [("tool_3", OSLO), ("files.find", ROME), ("python", CODE)]
ITEMS: dict[str, Json] = {  # what becomes of them
    "tool_3": {"type": "function_call", "name": "tool_3", "arguments": OSLO},
    "files.find": {"type": "function_call", "namespace": "files", "name": "find", "arguments": ROME},
    "python": {"type": "custom_tool_call", "name": "python", "input": "1 + 1"},
}


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def told(write: Callable[..., str], *calls: tuple[str, str]) -> str:
    """For families that write arguments as text."""
    return "\n".join(write(name, **json.loads(arguments)) for name, arguments in calls)


THOUGHT = "<think>\nhm\n</think>\n\n"
# A turn of calls as each family writes it; behind a thought where the family thinks.
TURNS: dict[str, Callable[..., str]] = {
    "qwen2.5": lambda *calls: "\n".join(hermes(*call) for call in calls),
    "qwen3": lambda *calls: THOUGHT + "\n".join(hermes(*call) for call in calls),
    "qwen3-coder": lambda *calls: told(coder, *calls),
    "llama-3": lambda *calls: "; ".join(bare(*call, "parameters") for call in calls),
    "mistral-nemo": lambda *calls: f"[TOOL_CALLS][{', '.join(bare(*call) for call in calls)}]",
    "mistral-small-3.2": lambda *calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls),
    "gpt-oss": lambda call: message("analysis", "hm") + to_function(*call).removesuffix("<|call|>"),
    "glm-4.6": lambda *calls: "\n<think>hm</think>\n" + told(glm, *calls),
    "deepseek-v3.1": deepseek,
    "deepseek-r1-distill": lambda *calls: "hm\n</think>\n\n" + fenced(*calls),
}
THINKING = {"qwen3", "gpt-oss", "glm-4.6", "deepseek-r1-distill"}
SINGLE = {"gpt-oss"}  # its calls end with a token that ends the turn
IN_TURN = [(name, CALLS) for name in NAMES if name not in SINGLE] + [
    (name, [call]) for name in SINGLE for call in CALLS
]


@asynccontextmanager
async def dictated(
    folder: Path,
    name: str = "qwen2.5",
    says: str | None = None,
    *,
    is_call: bool = True,
    max_kv_bytes: int = 1 << 22,
    **settings: Any,
) -> AsyncIterator[tuple[Served, LocalBackend]]:
    """A server whose local model of this family says `says` in each turn; without it, noise for as long as it may."""
    config = save_family(folder, name) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": WINDOW}))
    form = PromptFormat.load(folder)
    if says is not None:
        call_stop = form.family.call_stop if is_call else None
        end = form.vocabulary.added[call_stop] if call_stop else form.stops_in_order[0]
        (folder / "says.json").write_text(json.dumps([*form.encode([Span(says, True)]), end]))
    model = LocalModel(folder=folder, id="m", context_window=WINDOW, stop_ids=form.stops_in_order)
    with trio.fail_after(60):
        async with (
            open_local_backend(model, partial(Prompt, form), max_kv_bytes=max_kv_bytes, worker=FAKE) as backend,
            open_served(backend=backend, **settings) as served,
        ):
            await backend.wait_ready()
            yield served, backend


def test_every_family_has_its_turn() -> None:
    assert sorted(TURNS) == NAMES


@pytest.mark.parametrize(("name", "calls"), IN_TURN)
async def test_calls_among_twenty_tools_keep_apart(tmp_path: Path, name: str, calls: list[tuple[str, str]]) -> None:
    """ollama/ollama#16212, ggml-org/llama.cpp#20607, #20156, BerriAI/litellm#30071, vllm-project/vllm#25719,
    Wei-Shaw/sub2api#2875: calls shared an index, an item had several ids, a tool's kind was refused or not streamed."""
    async with dictated(tmp_path, name, TURNS[name](*calls)) as (served, _):
        events = await served.http().events(tools=TWENTY, temperature=0)
    assert [event["type"] for event in (events[0], events[-1])] == ["response.created", "response.completed"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    made = [item for item in done if item["type"] != "reasoning"]
    for item, (called, _) in zip(made, calls, strict=True):
        assert item.items() >= ITEMS[called].items()
    assert len({item["id"] for item in done}) == len(done)
    assert len({item["call_id"] for item in made}) == len(calls)
    for index, item in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["id"] == item["id"]
        pieces = [event["delta"] for event in own if "delta" in event]
        assert all(pieces)  # none is empty
        assert "".join(pieces) == (item.get("arguments") or item.get("input") or item["content"][0]["text"])
        assert own[-1]["type"] == "response.output_item.done"


@pytest.mark.parametrize("name", sorted(THINKING))
async def test_thoughts_are_an_item_and_are_counted_in_every_family_that_thinks(tmp_path: Path, name: str) -> None:
    """vllm-project/vllm#43395: one parser's reasoning came in no item and as 0 tokens."""
    async with dictated(tmp_path, name, TURNS[name](CALLS[0])) as (served, _):
        response = (await served.http().create(tools=TWENTY, temperature=0)).json
    assert response["output"][0]["type"] == "reasoning"
    assert response["output"][0]["content"][0]["text"].strip() == "hm"
    usage = response["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("says", [None, hermes("tool_3", '{"city": "' + "Oslo " * 40 + '"}')], ids=["text", "call"])
async def test_an_answer_that_is_cut_is_incomplete(tmp_path: Path, says: str | None, is_streamed: bool) -> None:
    """jundot/omlx#2817, unslothai/unsloth#10177, vllm-project/vllm#45386, vllm-project/agentic-api#273: a cut answer
    was reported as completed, or in an event of that name."""
    fields: Json = {"tools": TWENTY if says else [], "temperature": 0, "max_output_tokens": 60}
    async with dictated(tmp_path, says=says) as (served, _):
        if is_streamed:
            last = (await served.http().events(**fields))[-1]
            assert last["type"] == "response.incomplete"
            response = last["response"]
        else:
            response = (await served.http().create(**fields)).json
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["usage"]["output_tokens"] == 60


@pytest.mark.parametrize("how", ["socket", "streamed", "whole"])
async def test_sampling_stops_and_its_place_is_free_when_the_client_has_left(tmp_path: Path, how: str) -> None:
    """vllm-project/vllm#54947, #24584: generation went on after the client had left."""
    # Room for one: a second step may only begin where the first is over.
    async with dictated(tmp_path, max_kv_bytes=BYTES_PER_TOKEN * WINDOW) as (served, backend):
        fields: Json = {"temperature": 0, "tools": []}
        if how == "socket":
            async with served.connect() as client:
                await client.create(**fields)
                await client.until("response.output_text.delta")
        elif how == "streamed":
            async with served.http().stream("POST", "/v1/responses", input="go", stream=True, **fields) as stream:
                await stream.until("response.output_text.delta")
        else:
            with trio.CancelScope() as leaving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(served.http().create, **fields))
                    while not backend.load().running:
                        await trio.lowlevel.checkpoint()
                    leaving.cancel()
        while served.app.responses.runs.lives:
            await trio.lowlevel.checkpoint()
        load = backend.load()
        assert (load.running, load.waiting) == (0, 0)
        assert load.kv_tokens < WINDOW / 2  # it did not get to its end
        after = (await served.http().create(max_output_tokens=8, **fields)).json
        assert after["usage"]["output_tokens"] == 8


async def test_a_background_run_goes_on_when_its_reader_has_left(tmp_path: Path) -> None:
    """vllm-project/vllm#24584, the other half: what was asked for in the background is not aborted."""
    async with dictated(tmp_path, store=MemoryStore()) as (served, _):
        body = {"input": "go", "stream": True, "background": True, "max_output_tokens": 500}
        async with served.http().stream("POST", "/v1/responses", **body) as stream:
            (created,) = await stream.until("response.created")
        path = f"/v1/responses/{created['response']['id']}"
        async with served.http().stream("GET", f"{path}?stream=true") as stream:
            last = (await stream.rest())[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["usage"]["output_tokens"] == 500


async def test_a_pause_keeps_its_state_even_where_it_loses_its_kv(tmp_path: Path) -> None:
    """Wei-Shaw/sub2api#2115: the state was dropped between a call and its output."""
    fields: Json = {"tools": TWENTY[:3], "temperature": 0, "store": True}
    model = dictated(tmp_path, says=hermes("tool_1", OSLO), max_kv_bytes=BYTES_PER_TOKEN * 4000)
    async with model as (served, backend), served.connect() as client:
        await client.create(**fields)
        (key,) = pending(before := await client.step())
        await served.http().create(input="Hm. " * 900, **fields)
        assert backend.load().tokens_evicted > 0
        await client.answer((key, "sunny"))
        after = await client.step()
    first, second = before[-1]["response"], after[-1]["response"]
    assert after[-1]["type"] == "response.done"
    assert second["timing"]["step"]["tokens_evicted"] > 0
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert second["pending"][0]["answer_key"] != key


@pytest.mark.parametrize("name", NAMES)
async def test_a_history_of_every_item_kind_goes_through_every_template(tmp_path: Path, name: str) -> None:
    """vllm-project/vllm#45273: Codex' histories were rejected."""
    async with dictated(tmp_path, name, "Hello.", is_call=False) as (served, _):
        fields: Json = {"tools": TWENTY, "tool_choice": "none", "temperature": 0}
        reply = await served.http().create(input=[*HISTORY, {"role": "user", "content": "and now?"}], **fields)
    assert (reply.status, reply.json.get("status")) == (200, "completed"), reply.json


async def test_a_call_that_was_cut_is_gone_on_from(tmp_path: Path) -> None:
    """frontman-ai/frontman#1592, kernl-sdk/kernl#60: a history with an interrupted call was refused for ever."""
    fields: Json = {"tools": TWENTY, "temperature": 0, "max_output_tokens": 60}
    says = hermes("tool_3", '{"city": "' + "Oslo " * 40 + '"}')
    async with dictated(tmp_path, says=says, store=MemoryStore()) as (served, _):
        http = served.http()
        made = (await http.create(**fields)).json
        assert [(item["type"], item["status"]) for item in made["output"]] == [("function_call", "incomplete")]
        history = [{"role": "user", "content": "go"}, *made["output"], {"role": "user", "content": "go on"}]
        for more in ({"previous_response_id": made["id"]}, {"input": history}):
            assert (await http.create(**fields, **more)).json["status"] == "incomplete"
