"""Faults that users met in other servers of the shipped design, as behaviours of this one's chain lifecycle."""

from functools import partial
from typing import Any

import pytest
import trio

from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext
from tests.served import Client, open_served
from tests.tiny import HERMES, save_format

TALK = """
model: talk
steps:
  - text: My word is plum.
  - text: My word is pear.
  - text: Noted.
"""


async def say(client: Client, text: str, **fields: Any) -> dict[str, Any]:
    """One turn of a chain that stores nothing; its response."""
    await client.create(**({"input": text, "tools": [], "store": False} | fields))
    last = (await client.step())[-1]
    assert last["type"] == "response.completed", last
    response: dict[str, Any] = last["response"]
    return response


@pytest.fixture
def prompts(tmp_path, monkeypatch) -> tuple[ScriptBackend, list[Any]]:
    """A scripted backend with a tokenizer, and what its runs were given to render."""
    form, given = PromptFormat.load(save_format(tmp_path / "format", HERMES)), []
    prepare = Prompt.prepare

    async def noting(prompt, items):
        given.append((prompt, items))
        return await prepare(prompt, items)

    monkeypatch.setattr(Prompt, "prepare", noting)
    return ScriptBackend([parse_scenario(TALK)], partial(PromptContext, form)), given


async def test_the_third_turn_knows_the_first(prompts):
    """MiXaiLL76/auto_ai_router#199, ogx-ai/ogx#2074, #2299: only the last request's input was kept."""
    backend, given = prompts
    async with open_served(backend=backend, lifecycle="chain") as server, server.connect() as client:
        first = await say(client, "one")
        second = await say(client, "two", previous_response_id=first["id"])
        # Other instructions, so that everything has to be rendered again: from the items.
        await say(client, "three", previous_response_id=second["id"], instructions="Be brief.")
    texts = [getattr(item, "content", None) for item in given[-1][1]]
    said = [content if isinstance(content, str) else content[0].text for content in texts]
    assert said == ["one", "My word is plum.", "two", "My word is pear.", "three"]


async def test_history_keeps_each_text_with_its_own_role(prompts):
    """sgl-project/sglang#23662: the instructions stood where the assistant's text belonged."""
    backend, given = prompts
    async with open_served(backend=backend, lifecycle="chain") as server, server.connect() as client:
        first = await say(client, "hello", instructions="Never say plum.")
        await say(client, "repeat it", previous_response_id=first["id"])  # and instructions are not inherited
    _, items = given[-1]
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1].content[0].text == "My word is plum."


async def test_hosted_calls_of_the_history_are_gone_on_from():
    """ogx-ai/ogx#3268, #3269: a chain over a response with hosted calls was an internal error."""
    hosted = [
        {"role": "user", "content": "look it up"},
        {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "status": "completed", "results": []},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "n", "arguments": "{}", "output": "ok"},
    ]
    async with open_served(TALK, lifecycle="chain") as server, server.connect() as client:
        first = await say(client, "", input=hosted)
        second = await say(client, "and?", previous_response_id=first["id"])
        await say(client, "again", previous_response_id=second["id"], instructions="Be brief.")


async def test_a_prewarmed_chain_that_is_lost_is_told_by_the_very_code():
    """experientiallabs/experiential#706: the code's spelling differed, so clients did not send everything again."""
    async with open_served(TALK, lifecycle="chain") as server:
        async with server.connect() as client:
            warm = await say(client, "", generate=False, input=[])
        async with server.connect() as client:
            await client.create(previous_response_id=warm["id"], input="go", store=False)
            error = (await client.receive())["error"]
            assert error["code"] == "previous_response_not_found"
            assert error["message"] == f"Previous response with id '{warm['id']}' not found."
            await say(client, "go")


async def test_an_unstored_response_lives_only_on_its_connection():
    """Soju06/codex-lb#395: the next turn went over another connection and met another answer each time."""
    async with open_served(TALK, lifecycle="chain") as server, server.connect() as one, server.connect() as other:
        first = await say(one, "hello")
        await other.create(previous_response_id=first["id"], input="hi", tools=[], store=False)
        assert (await other.receive())["error"]["code"] == "previous_response_not_found"
        await say(one, "go on", previous_response_id=first["id"])


async def test_an_idle_connection_takes_the_next_create(autojump_clock):
    """livekit/agents#6513: pooled sockets were cut while idle, and the first send failed."""
    async with open_served(TALK, lifecycle="chain") as server, server.connect() as client:
        first = await say(client, "hello")
        await trio.sleep(3000)  # the documented limit is 3600
        await say(client, "still there?", previous_response_id=first["id"])


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (
            "{after_tokens: 0, code: server_is_overloaded, message: Busy., status: 503}",
            "failed",
            "server_is_overloaded",
        ),
        ("{after_tokens: 0, code: rate_limit_exceeded, message: Slow., status: 429}", "failed", "rate_limit_exceeded"),
    ],
)
async def test_failures_say_by_their_code_whether_to_retry(failure, status, code):
    """earendil-works/pi#7444: clients could tell no failure from another."""
    scenario = f"model: t\nsteps:\n  - [{{text: a}}, {{fail: {failure}}}]"
    async with open_served(scenario, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        response = (await client.step())[-1]["response"]
        assert (response["status"], response["error"]["code"]) == (status, code)


async def test_a_reasoning_models_thoughts_are_items_and_are_counted():
    """vllm-project/vllm#43395: reasoning came in no item and as 0 tokens."""
    thinking = "model: t\nsteps:\n  - [{reasoning: One two three.}, {text: Four.}]"
    async with open_served(thinking, lifecycle="chain") as server, server.connect() as client:
        response = await say(client, "think")
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
