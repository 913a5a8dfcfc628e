"""Faults that users met in other servers, as behaviours of this one. Each test names the public report.

Those that a pure machine shows are in its own test file; here are the ones that need a connection.
"""

import json

import pytest
import trio

from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.backends.script_context import EstimatedContext
from tests.served import FUNCTION, TWO_CALLS, open_served, pending

STALLED = "model: m\nsteps:\n  - [{text: a}, {stall: 100}, {text: b}]\n"
LONG = "model: m\nsteps:\n  - text: {words: 1000}\n"


async def test_pings_come_while_the_model_is_silent(autojump_clock):
    """openai/codex#20739: the socket closed before a terminal event."""
    async with open_served(STALLED, ping_every_s=5, pong_timeout_s=5) as server, server.connect() as client:
        await client.create()
        await client.until("response.output_text.delta")
        with trio.fail_after(200):
            frames = []
            while not frames or frames[-1]["type"] != "response.completed":
                frames.append(json.loads(await client.ws.get_message()))
        assert trio.current_time() >= 100  # twenty pings were answered, and the connection is still there


async def test_an_unknown_previous_response_leaves_the_socket_and_the_lane_usable():
    """can1357/oh-my-pi#925, earendil-works/pi#6955, openai/codex#42787: a stale id ended the client's turn."""
    async with open_served() as server, server.connect() as client:
        await client.create(previous_response_id="resp_abc")
        error = await client.receive()
        assert error["status"] == 400
        assert error["error"] == {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Previous response with id 'resp_abc' not found.",
            "param": "previous_response_id",
        }
        await client.create()
        assert (await client.step())[-1]["type"] == "response.done"


async def test_a_pause_is_not_forgotten_while_others_come_and_go(autojump_clock):
    """Wei-Shaw/sub2api#2115: the state was dropped between a call and its output."""
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        for number in range(20):
            async with server.connect() as other:
                await other.create(stream_id=f"lane{number}")
                await other.step()
        await trio.sleep(500)
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"


class BrokenSequence(ScriptSequence):
    """Fails with a text that nobody outside may read."""

    async def next_deltas(self):
        raise RuntimeError("/srv/secret/path 10.0.0.1")


class BrokenBackend(ScriptBackend):
    """Its sequences break at the first token."""

    def open_sequence(self, spec):
        return BrokenSequence(self._scenarios["script:test"], spec, EstimatedContext(spec))


async def test_internal_errors_stay_in_the_log(caplog):
    """vllm-project/vllm#35492: paths and addresses reached the client."""
    backend = BrokenBackend([parse_scenario(TWO_CALLS)])
    async with open_served(backend=backend) as server, server.connect() as client:
        await client.create()
        last = (await client.step())[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert "secret" not in json.dumps(last)
    assert "secret" in caplog.text


async def test_a_truncated_answer_is_incomplete_in_name_and_status():
    """jundot/omlx#2817, vllm-project/vllm#45386: a cut answer was reported as completed."""
    async with open_served(LONG) as server, server.connect() as client:
        await client.create(max_output_tokens=16)
        last = (await client.step())[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["status"] == "incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert last["response"]["output"][-1]["status"] == "incomplete"
        assert last["response"]["usage"]["output_tokens"] == 16


async def test_generation_stops_when_the_client_has_left(autojump_clock):
    """vllm-project/vllm#54947: generation went on after the client left. P41"""
    scenario = "model: m\npace: {tokens_per_second: 10}\nsteps:\n  - text: {words: 100000}\n"
    async with open_served(scenario) as server:
        async with server.connect() as client:
            await client.create()
            await client.until("response.output_text.delta")
            (live,) = server.app.responses.runs.lives.values()
        await trio.testing.wait_all_tasks_blocked()
        assert live.response.status.value == "incomplete"
        assert not server.app.responses.runs.lives


HISTORY = [
    {"type": "message", "role": "developer", "content": "Be short."},
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yo", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "seen"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    {"type": "local_shell_call", "call_id": "c3", "id": "l1", "status": "completed",
     "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "c3", "output": "a"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "shell_call", "call_id": "c4", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "c4", "output": [{"stdout": "a", "stderr": ""}]},
    {"type": "apply_patch_call", "call_id": "c5", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed"},
    {"type": "mcp_call", "id": "m1", "name": "n", "server_label": "s", "arguments": "{}", "output": "o"},
]  # fmt: skip


async def test_a_history_of_every_item_kind_is_taken():
    """vllm-project/vllm#45273: Codex' histories were rejected."""
    async with open_served() as server, server.connect() as client:
        await client.create(input=HISTORY)
        assert (await client.step())[-1]["type"] != "error"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "s", "server_url": "http://x"},
        {"type": "something_new", "anything": 1},
    ],
)
async def test_unknown_tool_kinds_are_skipped_visibly_or_refused_by_name(tool):
    """ggml-org/llama.cpp#20156, unslothai/unsloth#5141: 400 "'type' of tool must be 'function'". P39"""
    async with open_served() as server, server.connect() as client:
        await client.create(tools=[FUNCTION, tool])
        created = (await client.step())[0]["response"]
        assert [(entry["index"], entry["type"]) for entry in created["skipped_tools"]] == [(1, tool["type"])]
        assert [shown["type"] for shown in created["tools"]] == ["function", tool["type"]]
    async with open_served(skip_unknown_tools=False) as server, server.connect() as client:
        await client.create(tools=[FUNCTION, tool])
        error = (await client.receive())["error"]
        assert tool["type"] in error["message"]
        assert error["param"] == "tools[1].type"


async def test_a_user_message_while_a_call_is_open_names_the_call():
    """frontman-ai/frontman#1592: after an interrupt "No tool output found for function call". P14"""
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.send("response.append", input="stop that")
        error = (await client.receive())["error"]
        assert error["message"] == f"No tool output found for function call {keys[0]}."
        await client.answer((keys[0], "interrupted"), (keys[1], "interrupted"))
        assert (await client.step())[-1]["type"] == "response.completed"
