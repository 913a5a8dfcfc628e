"""Both routes on a server that knows nothing of us: llama.cpp's, with the default model."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from engine.backends.base import Backend, ModelInfo
from engine.backends.default_model import DEFAULT_MODEL, find_file
from engine.backends.pretrained import tokenizer_folder
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.chat import open_chat_backend
from engine.backends.remote.chat_request import DIALECTS
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.raw import RawModel, open_raw_backend
from tests.contract_answers import Json
from tests.peers.llama_server import TEMPLATE, open_llama_server
from tests.served import Client, open_served

pytestmark = [pytest.mark.model, pytest.mark.peer]

WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ENDS = ("response.done", "response.completed", "response.failed", "response.incomplete")
QUESTION = "What is the weather in {}?"
PARIS: Json = {"type": "message", "role": "user", "content": QUESTION.format("Paris")}


class Recording(Link):
    """A way to the server that keeps what goes out."""

    def __init__(self, url: str) -> None:
        super().__init__(LinkConfig(base_url=f"{url}/v1"))
        self.bodies: list[Json] = []

    def new_client(self) -> httpx2.AsyncClient:
        client = super().new_client()
        client.event_hooks = {"request": [self._note]}
        return client

    async def _note(self, request: httpx2.Request) -> None:
        if request.content:
            self.bodies.append(json.loads(request.content))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return find_file(tmp_path, lambda what, fraction: None)


@asynccontextmanager
async def open_client(backend: Backend) -> AsyncIterator[Client]:
    """A client of ours whose model is on that server."""
    with trio.fail_after(120):
        async with open_served(backend=backend) as served, served.connect() as client:
            yield client


async def frames_until(client: Client, *types: str) -> list[Json]:
    """Frames up to the first of one of these types, however long the model takes beside other work."""
    frames: list[Json] = []
    while not frames or frames[-1]["type"] not in types:
        frames.append(json.loads(await client.ws.get_message()))
    return frames


async def nothing() -> None:
    """What happens while the run is paused."""


async def ask_for_weather(
    client: Client, items: list[Json], at_pause: Callable[[], Awaitable[None]]
) -> tuple[Json, str, list[Json]]:
    """A run with a call: the call, what is said after its output, and all frames."""
    fields: Json = {"temperature": 0, "max_output_tokens": 96, "include": ["response.tokens"]}
    await client.create(input=items, tools=[WEATHER], tool_choice="required", **fields)
    frames = await frames_until(client, *ENDS)
    assert frames[-1]["type"] == "response.done", frames[-1]
    (call,) = [f["item"] for f in frames if f["type"] == "response.output_item.done" and "call_id" in f["item"]]
    await at_pause()
    await client.answer((call["call_id"], "Rain"), tool_choice="none")
    frames += await frames_until(client, *ENDS)
    assert frames[-1]["type"] in ("response.completed", "response.incomplete"), frames[-1]
    return call, "".join(f["delta"] for f in frames if f["type"] == "response.output_text.delta"), frames


async def post(url: str, path: str, body: Json) -> Json:
    """What the server itself says to this."""
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(url + path, json=body)
    found: Json = answer.raise_for_status().json()
    return found


def example(city: str, weather: str) -> list[Json]:
    """A question, the call that it needs, and the answer."""
    call = {"type": "function_call", "call_id": f"call_{city}", "name": "get_weather"}
    return [
        {"type": "message", "role": "user", "content": QUESTION.format(city)},
        call | {"arguments": json.dumps({"city": city})},
        {"type": "function_call_output", "call_id": f"call_{city}", "output": weather},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{weather} in {city}."}]},
    ]


async def test_a_run_with_a_call_by_chat_completions(file: Path) -> None:
    async with open_llama_server(file, TEMPLATE) as server:
        link = Recording(server.url)
        opened = open_chat_backend(link, DIALECTS["llamacpp"], [ModelInfo("smol", 0)])
        async with opened as backend, open_client(backend) as client:
            items = [*example("Rome", "Sunny"), *example("Oslo", "Snow"), PARIS]
            call, text, frames = await ask_for_weather(client, items, nothing)
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
        first, second = link.bodies
        assert second["messages"][: len(first["messages"])] == first["messages"]
        made, output = second["messages"][len(first["messages"]) :]
        assert output["tool_call_id"] == made["tool_calls"][0]["id"] and output["content"] == "Rain"
        whole = await post(server.url, "/v1/chat/completions", second | {"stream": False})
    assert text and text == whole["choices"][0]["message"]["content"]
    done = next(f for f in frames if f["type"] == "response.done")["response"]
    assert done["usage"]["input_tokens"] > 50 and done["timing"]["step"]["prefill_ms"] > 0
    assert frames[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 50, "its cache had the beginning"


async def test_a_run_with_a_call_by_token_ids_whose_server_was_killed_at_its_pause(file: Path) -> None:
    folder = await trio.to_thread.run_sync(tokenizer_folder, lambda what, fraction: None)
    form = await trio.to_thread.run_sync(PromptFormat.load, folder)
    dialect = dialect_of("llamacpp")
    assert dialect is not None
    model = RawModel(id=DEFAULT_MODEL, created=0, owned_by="llamacpp")
    async with open_llama_server(file) as server:
        link = Recording(server.url)
        async with open_raw_backend(link, dialect, model, form) as backend, open_client(backend) as client:
            call, text, frames = await ask_for_weather(client, [PARIS], server.restart)
        assert call["name"] == "get_weather" and json.loads(call["arguments"]).keys() == {"city"}
        spans = [span for f in frames if f["type"] == "response.tokens" for span in f["spans"]]
        last = link.bodies[-1]
        whole = await post(server.url, "/completion", last | {"stream": False})
    ids = [id_ for span in spans for id_ in span["ids"]]
    for body in link.bodies:
        assert body["prompt"] == ids[: len(body["prompt"])], "the ids that were sent are those of the log"
    assert len(last["prompt"]) > 50
    sampled: list[Any] = ids[len(last["prompt"]) :]
    assert whole["tokens"] == sampled, "greedy: what the server makes of the same ids by itself"
    assert text and whole["content"] == text
