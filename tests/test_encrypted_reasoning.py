"""Reasoning that leaves the server sealed and comes back, over the wire: the model is given the same text again."""

from typing import Any

import pytest

from engine.backends.base import Extension, RunSpec
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.content import ReasoningText
from engine.items import Item, Reasoning
from tests.served import Client, open_served

THOUGHT = "Two cities, so two calls."
STEPS = f"""
model: test
steps:
  - reasoning: {THOUGHT}
    text: Hello.
"""


class RecordingBackend(ScriptBackend):
    """Remembers the items that its sequences were given."""

    given: list[Item]

    def open_sequence(self, spec: RunSpec) -> ScriptSequence:
        sequence = super().open_sequence(spec)
        prepare = sequence.prepare

        async def record(items: Any) -> Extension:
            self.given = list(items)
            return await prepare(items)

        sequence.prepare = record  # type: ignore[method-assign]  # what the model is given is the question here
        return sequence


def recording() -> RecordingBackend:
    return RecordingBackend([parse_scenario(STEPS)])


async def reasoning_of(client: Client, **fields: Any) -> dict[str, Any]:
    """The reasoning item of a run, as its event and its terminal have it."""
    await client.create(include=["reasoning.encrypted_content"], store=False, **fields)
    frames = await client.step()
    done = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert frames[-1]["response"]["output"] == done
    item: dict[str, Any] = done[0]
    return item


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_sealed_reasoning_comes_back_as_the_text_it_was(summary: str | None) -> None:  # P57
    backend = recording()
    async with open_served(backend=backend, lifecycle="chain") as server, server.connect() as client:
        item = await reasoning_of(client, reasoning={"summary": summary})
        assert THOUGHT not in item["encrypted_content"]
        # As Codex sends it back: without the id, and with what was not for it to read.
        carried = {"type": "reasoning", "summary": item["summary"], "encrypted_content": item["encrypted_content"]}
        await client.create(input=[carried, {"role": "user", "content": "And now?"}], store=False)
        assert (await client.step())[-1]["type"] == "response.completed"
        given = backend.given[0]
        assert isinstance(given, Reasoning)
        assert given.content == [ReasoningText(text=THOUGHT)]


async def test_reasoning_is_sealed_only_when_that_is_asked_for() -> None:
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        assert all("encrypted_content" not in frame.get("item", {}) for frame in await client.step())


async def test_sealed_reasoning_is_counted_as_the_text_it_is() -> None:
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        item = await reasoning_of(client)
        clear = {"type": "reasoning", "summary": [], "content": item["content"]}
        sealed = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
        counts = [
            (await server.http().post("/v1/responses/input_tokens", input=[one])).json["input_tokens"]
            for one in (clear, sealed)
        ]
        assert counts[0] == counts[1]


async def test_another_servers_reasoning_is_refused_by_its_place_and_nothing_has_started() -> None:  # P57
    async with open_served(STEPS) as elsewhere, elsewhere.connect() as client:
        foreign = (await reasoning_of(client))["encrypted_content"]
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        items = [{"role": "user", "content": "x"}, {"type": "reasoning", "summary": [], "encrypted_content": foreign}]
        await client.create(input=items)
        error = (await client.receive())["error"]
        assert (error["code"], error["param"]) == ("invalid_encrypted_content", "input[1].encrypted_content")


async def test_the_place_is_the_one_the_client_knows_though_its_echoes_are_dropped() -> None:
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        frames = await client.step()
        damaged = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
        items = [*frames[-1]["response"]["output"], {"role": "user", "content": "x"}, damaged]
        await client.create(previous_response_id=frames[-1]["response"]["id"], input=items)
        assert (await client.receive())["error"]["param"] == "input[3].encrypted_content"


async def test_an_echo_of_sealed_reasoning_is_dropped_and_not_opened() -> None:
    backend = recording()
    async with open_served(backend=backend, lifecycle="chain") as server, server.connect() as client:
        await client.create(include=["reasoning.encrypted_content"])
        ended = (await client.step())[-1]["response"]
        echo = ended["output"][0] | {"encrypted_content": "damaged"}
        await client.create(previous_response_id=ended["id"], input=[echo, {"role": "user", "content": "x"}])
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_reference_leads_nowhere_without_a_store() -> None:
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create(input=[{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}])
        error = await client.receive()
        assert (error["status"], error["error"]["code"], error["error"]["param"]) == (
            404,
            "item_not_found",
            "input[1].id",
        )
