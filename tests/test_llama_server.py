"""Both routes on a server that knows nothing of us: llama.cpp's, with the default model."""

import json
from pathlib import Path

import pytest

from engine.backends.base import ModelInfo
from engine.backends.default_model import DEFAULT_MODEL, find_file
from engine.backends.remote.chat import open_chat_backend
from engine.backends.remote.chat_request import DIALECTS
from tests.peers.llama_server import TEMPLATE, open_llama_server
from tests.peers.service_run import PARIS, Recording, ask_for_weather, example, nothing, open_client, post, run_by_ids

pytestmark = [pytest.mark.model, pytest.mark.peer]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return find_file(tmp_path, lambda what, fraction: None)


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
        whole = await post(f"{server.url}/v1/chat/completions", second | {"stream": False})
    assert text and text == whole["choices"][0]["message"]["content"]
    done = next(f for f in frames if f["type"] == "response.done")["response"]
    assert done["usage"]["input_tokens"] > 50 and done["timing"]["step"]["prefill_ms"] > 0
    assert frames[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 50, "its cache had the beginning"


async def test_a_run_with_a_call_by_token_ids_whose_server_was_killed_at_its_pause(file: Path) -> None:
    async with open_llama_server(file) as server:
        assert await run_by_ids("llamacpp", server.url, DEFAULT_MODEL, server.restart)
