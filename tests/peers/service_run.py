"""A run with a call on a server that knows nothing of us, by either route, and what the server itself makes of that.

`python -m tests.peers.service_run vllm URL MODEL` does it on a server that somebody has started with the default model
(`longloop models --fetch default` prints its folder): for servers that are too much for a test.
"""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import trio

from engine.backends.base import Backend
from engine.backends.pretrained import tokenizer_folder
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.raw import RawModel, open_raw_backend
from tests.contract_answers import Json
from tests.served import Client, open_served

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
ENDS: Final = ("response.done", "response.completed", "response.failed", "response.incomplete")
QUESTION: Final = "What is the weather in {}?"
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


async def post(url: str, body: Json) -> Json:
    """What the server itself says to this."""
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(url, json=body)
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


async def run_by_ids(name: str, url: str, model: str, at_pause: Callable[[], Awaitable[None]] = nothing) -> str:
    """A run with a call by token ids; what was said last. Fails where an id is not what it should be."""
    folder = await trio.to_thread.run_sync(tokenizer_folder, lambda what, fraction: None)
    form = await trio.to_thread.run_sync(PromptFormat.load, folder)
    dialect = dialect_of(name)
    assert dialect is not None
    link = Recording(url)
    opened = open_raw_backend(link, dialect, RawModel(id=model, created=0, owned_by=name), form)
    async with opened as backend, open_client(backend) as client:
        call, text, frames = await ask_for_weather(client, [PARIS], at_pause)
    assert call["name"] == "get_weather" and json.loads(call["arguments"]).keys() == {"city"}
    ids = [id_ for f in frames if f["type"] == "response.tokens" for span in f["spans"] for id_ in span["ids"]]
    for body in link.bodies:
        assert body["prompt"] == ids[: len(body["prompt"])], "the ids that were sent are those of the log"
    last = link.bodies[-1]
    assert len(last["prompt"]) > 50
    whole = await post(
        link.url(dialect.path), {k: v for k, v in last.items() if k != "stream_options"} | {"stream": False}
    )
    choice = whole["choices"][0] if "choices" in whole else whole
    made: list[Any] = choice.get("token_ids") or choice["tokens"]
    assert made == ids[len(last["prompt"]) :], "greedy: what the server makes of the same ids by itself"
    assert text and choice.get("text", choice.get("content")) == text
    return text


if __name__ == "__main__":
    print(trio.run(run_by_ids, *sys.argv[1:4]))
