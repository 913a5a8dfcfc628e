"""Faults that users met in other servers' HTTP, as behaviours of this one. Each test names the public report."""

import pytest
import trio
from trio.testing import MockClock

from engine.backends.scenario import parse_scenario
from tests.kept import open_kept
from tests.served import FUNCTION, TWO_CALLS
from tests.test_known_faults import HISTORY, BrokenBackend

THINKING = """
model: test
steps:
  - reasoning: Hm.
    text: I look twice.
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
"""
SAYING = "model: test\nsteps:\n  - text: Hello to you.\n"
SLOW = "model: test\npace: {tokens_per_second: 10}\nsteps:\n  - text: {words: 1000}\n"


async def test_a_stream_says_everything_of_every_item_in_order() -> None:
    """BerriAI/litellm#22102, #30071, openai/codex#12798, Oaklight/llm-rosetta#56, Wei-Shaw/sub2api#2875,
    ggml-org/llama.cpp#20607, maximhq/bifrost#5959, NousResearch/hermes-agent#5678: events, ids or output missing."""
    async with open_kept(THINKING) as server:
        events = await server.http().events(tools=[FUNCTION])
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    for index, item in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["id"] == own[-1]["item"]["id"]
        text = "".join(event["delta"] for event in own if "delta" in event)
        assert text == item.get("arguments") or text == item["content"][0]["text"]
        assert any(event["type"].endswith((".text.done", "_text.done", "arguments.done")) for event in own)


async def test_whole_and_streamed_answers_are_the_same_response() -> None:
    """vllm-project/vllm#47916: a stream's ids were not those of the stored response."""
    async with open_kept(THINKING) as server:
        events = await server.http().events(tools=[FUNCTION], background=True)
        last = events[-1]["response"]
        assert (await server.http().get(f"/v1/responses/{last['id']}")).json == last


async def test_created_comes_first_even_if_nothing_else_does() -> None:
    """BerriAI/litellm#9545: clients expected response.created and got the end."""
    async with open_kept("model: test\nsteps:\n  - {fail: {}}\n") as server:
        types = [event["type"] for event in await server.http().events()]
    assert types == ["response.created", "response.in_progress", "error", "response.failed"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_internal_errors_stay_in_the_log(caplog: pytest.LogCaptureFixture, is_streamed: bool) -> None:
    """vllm-project/vllm#35492: paths and addresses reached the client."""
    async with open_kept(backend=BrokenBackend([parse_scenario(TWO_CALLS)])) as server:
        http = server.http()
        said = str(await http.events()) if is_streamed else str((await http.create()).json)
    assert "server_error" in said
    assert "secret" not in said
    assert "secret" in caplog.text


async def test_a_truncated_answer_is_incomplete_in_name_and_status_and_in_replays(autojump_clock: MockClock) -> None:
    """vllm-project/vllm#45386: an event named response.completed brought the status incomplete."""
    async with open_kept(SLOW) as server:
        events = await server.http().events(background=True, max_output_tokens=16)
        path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
        async with server.http().stream("GET", path) as stream:
            assert await stream.rest() == events
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "incomplete")


async def test_a_run_that_is_cancelled_right_after_its_start_stops(autojump_clock: MockClock) -> None:
    """lmstudio-ai/lmstudio-bug-tracker#1203: it was sampled to its end."""
    async with open_kept(SLOW) as server:
        begun = (await server.http().create(background=True)).json
        ended = (await server.http().post(f"/v1/responses/{begun['id']}/cancel")).json
    assert ended["status"] == "cancelled"
    assert trio.current_time() < 1


async def test_every_kind_of_item_is_taken_as_history() -> None:
    """vllm-project/vllm#45273: a conversation with tools of all kinds was rejected."""
    async with open_kept(SAYING) as server:
        reply = await server.http().create(input=[*HISTORY, {"role": "user", "content": "and now?"}])
    assert (reply.status, reply.json["status"]) == (200, "completed")


async def test_tools_of_unknown_kinds_are_skipped_and_said_to_be() -> None:
    """ggml-org/llama.cpp#20156, unslothai/unsloth#5141: 400 for any tool that is no function."""
    async with open_kept(THINKING) as server:
        reply = await server.http().create(tools=[{"type": "image_generation"}, FUNCTION])
    assert [tool["type"] for tool in reply.json["skipped_tools"]] == ["image_generation"]
    assert reply.json["output"][-1]["name"] == "look"


async def test_an_interrupted_call_is_named_when_its_output_is_missing() -> None:
    """frontman-ai/frontman#1592, kernl-sdk/kernl#60, tidyverse/ellmer#459."""
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    async with open_kept(SAYING) as server:
        reply = await server.http().create(input=[{"role": "user", "content": "a"}, call])
    assert (reply.status, reply.error["message"]) == (400, "No tool output found for function call call_1.")
