"""Hosted tools in the loop: the server's own calls run beside the client's, in every lifecycle."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from trio_websocket import ConnectionClosed

from engine.hosted.base import HostedResult, failed
from engine.hosted.fake import FakeHost, Played
from engine.items import Hosted
from engine.store_fake import MemoryStore
from tests.served import FUNCTION, Client, open_served, pending

MCP = {"type": "mcp", "server_label": "fake"}
TOOLS = [FUNCTION, MCP]
HOSTED = """
model: test
steps:
  - {call: {name: find, arguments: {n: 1}}}
  - text: "It says {last_output}."
"""
MIXED = """
model: test
steps:
  - calls: [{name: find}, {name: look}, {name: read}]
  - text: "{outputs}"
"""


def settings(**more: Any) -> dict[str, Any]:
    return {"tools": ["fake"], **more}


@asynccontextmanager
async def open_client(scenario: str, host: FakeHost, **more: Any) -> AsyncIterator[Client]:
    """A client of a server with this host."""
    serving = open_served(scenario, hosts={"mcp": host}, **settings(**more))
    async with serving as served, served.connect() as client:
        yield client


def types_of(frames: list[dict[str, Any]]) -> list[str]:
    """The events' types, deltas in a row as one."""
    types = [frame["type"].removeprefix("response.") for frame in frames]
    return [kind for kind, before in zip(types, [None, *types], strict=False) if kind != before]


def text_of(frames: list[dict[str, Any]]) -> str:
    text: str = frames[-1]["response"]["output"][-1]["content"][0]["text"]
    return text


def key_of(frames: list[dict[str, Any]]) -> str:
    """The client's call among the items that are done."""
    items = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    (key,) = [item["call_id"] for item in items if item["type"] == "function_call"]
    return str(key)


async def test_hosted_call_runs_within_the_response() -> None:  # P120, P121
    host = FakeHost({"find": Played(output="42")})
    async with open_client(HOSTED, host) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert types_of(frames)[:9] == [
        *("created", "in_progress", "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        *("mcp_call_arguments.done", "mcp_call.completed", "output_item.done", "output_item.added"),
    ]
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    about = [frame for frame in frames if frame.get("output_index") == 0]
    item = about[-1]["item"]
    assert item | {"id": ""} == {
        "type": "mcp_call", "id": "", "status": "completed", "server_label": "fake", "name": "find",
        "arguments": '{"n": 1}', "output": "42",
    }  # fmt: skip
    assert (frames[2]["item"]["status"], frames[2]["item"]["arguments"]) == ("in_progress", "")
    assert {frame["item_id"] for frame in about[1:-1]} == {item["id"]}
    assert frames[-1]["response"]["output"][0] == item
    assert text_of(frames) == "It says 42."
    assert [call.arguments for call in host.calls] == ['{"n": 1}']


async def test_hosted_call_is_offered_only_to_whom_asks_for_it() -> None:
    async with open_client(HOSTED, FakeHost({"find": Played()})) as client:
        await client.create(tools=[FUNCTION])
        assert "find" in (await client.step())[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("takes", [(4.0, 3.0, 1.0), (1.0, 3.0, 4.0), (3.0, 4.0, 1.0)])
async def test_mixed_step_takes_as_long_as_its_slowest_tool(
    takes: tuple[float, float, float], autojump_clock: MockClock
) -> None:  # P122
    host = FakeHost({"find": Played(output="one", takes_s=takes[0]), "read": Played(output="three", takes_s=takes[2])})
    async with open_client(MIXED, host) as client:
        start = trio.current_time()
        await client.create(tools=TOOLS)
        frames = await client.until("response.function_call_arguments.done")
        frames += await client.until("response.output_item.done")
        await trio.sleep(takes[1])
        await client.answer((key_of(frames), "two"))
        frames = [] + await client.until("response.completed")
        assert trio.current_time() - start == pytest.approx(max(takes), abs=0.01)
        assert text_of(frames) == "one\ntwo\nthree"
        is_hosted_last = takes[1] != max(takes)
        assert ("response.done" in [frame["type"] for frame in frames]) is not is_hosted_last


async def test_pause_comes_when_hosted_calls_are_over(autojump_clock: MockClock) -> None:  # P122
    host = FakeHost({"find": Played(output="one", takes_s=4), "read": Played(raises=RuntimeError("no"))})
    async with open_client(MIXED, host) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
        assert types_of(frames)[-3:] == ["mcp_call.completed", "output_item.done", "done"]
        timing = frames[-1]["response"]["timing"]["step"]
        assert timing["hosted_tools_ms"] >= 0
        await client.answer((pending(frames)[0], "two"))
        frames = await client.step()
    assert text_of(frames) == "one\ntwo\nread failed in the server."
    output = frames[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["mcp_call", "function_call", "mcp_call", "message"]
    assert output[2]["status"] == "failed"
    assert output[2]["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "read failed in the server."}],
    }
    assert "output" not in output[2]


async def test_faults_of_the_servers_own_stay_in_the_log(caplog: pytest.LogCaptureFixture) -> None:  # P121
    """vllm-project/vllm#35492: paths and addresses reached the client."""
    host = FakeHost({"find": Played(raises=OSError(28, "No space left", "/srv/secret/path"))})
    async with open_client(HOSTED, host) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert text_of(frames) == "It says find failed in the server.."
    assert "secret" not in str(frames)
    assert "secret" in caplog.text


async def test_failed_call_says_so_by_its_events() -> None:
    """livekit/agents#6785: a tool that raised left its call unanswered, and the model waited for ever."""
    host = FakeHost({"find": Played(result=failed("nothing there"))})
    async with open_client(HOSTED, host) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert "mcp_call.failed" in types_of(frames)
    assert text_of(frames) == "It says nothing there."


async def test_call_that_takes_too_long_has_failed(autojump_clock: MockClock) -> None:
    """livekit/agents#6785: a tool that hung blocked the model for ever."""
    host = FakeHost({"find": Played(takes_s=100)})
    async with open_client(HOSTED, host, hosted_timeout_s=3) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
        assert trio.current_time() == pytest.approx(3, abs=0.1)
    assert text_of(frames) == "It says find did not finish within 3 s.."
    assert host.num_cancelled == 1


async def test_long_output_is_cut() -> None:
    host = FakeHost({"find": Played(output="x" * 50)})
    async with open_client(HOSTED, host, max_hosted_output_chars=10) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert text_of(frames) == "It says xxxxxxxxxx\n[40 more characters were cut]."


async def test_long_error_is_cut_too() -> None:
    host = FakeHost({"find": Played(result=failed("x" * 500))})
    async with open_client(HOSTED, host, max_hosted_output_chars=40) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    error = frames[-1]["response"]["output"][0]["error"]["content"][0]["text"]
    assert error == f"{'x' * 40}\n[460 more characters were cut]"


@pytest.mark.parametrize(
    "played",
    [
        Played(output="a\ud800b"),
        Played(result=failed("a\ud800b")),
        Played(result=HostedResult("a?b", None, {"output": "a\ud800b"})),
    ],
)
async def test_half_a_surrogate_pair_harms_nothing(played: Played) -> None:
    async with open_client(HOSTED, FakeHost({"find": played})) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert "a?b" in text_of(frames)
    assert frames[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("kind", ["web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"])
async def test_arguments_of_any_depth_harm_nothing(kind: str) -> None:
    deep = json.dumps({"name": "find", "arguments": "[" * 50_000})
    scenario = f"model: test\nsteps:\n  - {{call: {deep}}}\n  - text: said\n"
    async with open_client(scenario, FakeHost({"find": Played()}, hosted=kind)) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert text_of(frames) == "said"


async def test_run_that_cannot_be_ended_in_order_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    broken = Played(result=HostedResult("", None, {"output": object()}))  # a bug of a tool's: this is no JSON
    hosts = {"mcp": FakeHost({"find": broken})}
    serving = open_served(HOSTED, hosts=hosts, store=MemoryStore(), **settings())
    async with serving as served, served.connect() as client, served.connect() as other:
        await client.create(tools=TOOLS)
        with pytest.raises(ConnectionClosed):
            await client.step()
        await other.create(tools=[FUNCTION])
        assert (await other.step())[-1]["type"] == "response.failed"  # which is what the scenario does without `find`
    assert "cannot be ended in order" in caplog.text


async def test_calls_beyond_the_servers_limit_wait(autojump_clock: MockClock) -> None:
    host = FakeHost({"find": Played(takes_s=1), "read": Played(takes_s=1)})
    async with open_client(MIXED, host, max_hosted_at_once=1) as client:
        await client.create(tools=TOOLS)
        await client.step()
        assert trio.current_time() == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("how", ["cancel", "supersede", "disconnect"])
async def test_what_ends_the_run_cancels_its_calls(how: str, autojump_clock: MockClock) -> None:  # P123
    host = FakeHost({"find": Played(takes_s=1000)})
    async with open_served(HOSTED, hosts={"mcp": host}, **settings(hosted_timeout_s=2000)) as served:
        async with served.connect() as client:
            await client.create(tools=TOOLS)
            await client.until("response.mcp_call_arguments.done")
            await trio.testing.wait_all_tasks_blocked()
            (live,) = served.app.responses.runs.lives.values()
            if how == "cancel":
                await client.send("response.cancel")
                assert (await client.step())[-1]["response"]["incomplete_details"] == {"reason": "cancelled"}
            elif how == "supersede":
                live.cancel("superseded")
        await trio.testing.wait_all_tasks_blocked()
        assert host.num_cancelled == 1
        (item,) = live.response.output
        assert isinstance(item, Hosted)
        assert item.data["status"] == "incomplete"


THRICE = """
model: test
steps:
  - calls: [{name: find}, {name: find}, {name: find}]
  - text: "{outputs}"
"""
LIMITED = """
model: test
steps:
  - {call: {name: find}}
  - {call: {name: find}}
  - text: "It says {last_output}."
"""
ENDLESS = """
model: test
steps:
  - {call: {name: find}}
"""


async def test_model_is_told_that_there_are_no_more_calls() -> None:  # P124
    host = FakeHost({"find": Played()})
    async with open_client(THRICE, host) as client:
        await client.create(tools=TOOLS, max_tool_calls=1)
        frames = await client.until("response.completed")
    assert len(host.calls) == 1
    output = frames[-1]["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "failed", "failed", "completed"]
    assert "1 calls of hosted tools" in text_of(frames)


async def test_model_is_not_offered_what_it_may_not_call() -> None:  # P124
    host = FakeHost({"find": Played()})
    async with open_client(LIMITED, host) as client:
        await client.create(tools=TOOLS, max_tool_calls=1)
        frames = await client.step()
    assert len(host.calls) == 1
    assert frames[-1]["type"] == "response.completed"


async def test_servers_own_limit_ends_an_endless_run() -> None:
    host = FakeHost({"find": Played()})
    async with open_client(ENDLESS, host, max_hosted_calls=3) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert len(host.calls) == 3
    assert frames[-1]["type"] == "response.completed"


async def test_chain_completes_with_the_clients_call_and_goes_on() -> None:  # P122
    host = FakeHost({"find": Played(output="one"), "read": Played(output="three")})
    async with open_client(MIXED, host, lifecycle="chain") as client:
        await client.create(tools=TOOLS)
        first = await client.step()
        assert [item["type"] for item in first[-1]["response"]["output"]] == [
            *("mcp_call", "function_call", "mcp_call"),
        ]
        output = {"type": "function_call_output", "call_id": key_of(first), "output": "two"}
        response_id = first[-1]["response"]["id"]
        await client.create(tools=TOOLS, previous_response_id=response_id, input=[output])
        second = await client.step()
    assert text_of(second) == "one\ntwo\nthree"
    assert [item["type"] for item in second[-1]["response"]["output"]] == ["message"]


async def test_inject_goes_on_with_the_last_output() -> None:
    host = FakeHost({"find": Played(output="one"), "read": Played(output="three")})
    async with open_client(MIXED, host, lifecycle="inject") as client:
        await client.create(tools=TOOLS)
        frames = await client.until("response.mcp_call.completed")
        while "function_call" not in [frame.get("item", {}).get("type") for frame in frames]:
            frames += await client.until("response.output_item.done")
        output = {"type": "function_call_output", "call_id": key_of(frames), "output": "two"}
        await client.send("response.inject", response_id=frames[0]["response"]["id"], input=[output])
        assert text_of(await client.step()) == "one\ntwo\nthree"


async def test_stateless_run_streams_hosted_items_and_is_stored() -> None:
    host = FakeHost({"find": Played(output="42")})
    store = MemoryStore()
    async with open_served(HOSTED, hosts={"mcp": host}, store=store, **settings()) as served:
        http = served.http()
        made = (await http.create(input="go", tools=TOOLS)).json
        assert made["output"][0]["output"] == "42"
        again = (await http.get(f"/v1/responses/{made['id']}")).json
        assert again["output"] == made["output"]
        listed = (await http.get(f"/v1/responses/{made['id']}/input_items")).json
        assert [item["type"] for item in listed["data"]] == ["message"]
    async with open_served(HOSTED, hosts={"mcp": host}, store=store, **settings()) as served:
        again = (await served.http().get(f"/v1/responses/{made['id']}")).json
        assert again["output"] == made["output"]


async def test_killed_server_goes_on_after_a_hosted_call() -> None:  # P125
    host = FakeHost({"find": Played(output="one"), "read": Played(output="three")})
    store = MemoryStore()
    async with open_client(MIXED, host, store=store) as client:
        await client.create(tools=TOOLS, store=True, resumable=True)
        first = await client.step()
    async with open_client(MIXED, host, store=store) as client:
        await client.send("response.resume", response_id=first[0]["response"]["id"], starting_after=-1)
        frames = await client.until("response.done")
        assert [json.dumps(frame) for frame in frames[1:]] == [json.dumps(frame) for frame in first]
        await client.answer((pending(frames)[0], "two"))
        assert text_of(await client.step()) == "one\ntwo\nthree"


# --- policies ----------------------------------------------------------------------------------------------------

BLOCKS = [{"name": "codenames", "kind": "patterns", "patterns": ["falcon-[0-9]{2}"], "on": ["tool_output"]}]


async def test_output_that_a_policy_blocks_is_given_to_nobody() -> None:  # P121
    host = FakeHost({"find": Played(output="see falcon-77 for more")})
    async with open_client(HOSTED, host, policies=BLOCKS) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert "falcon" not in json.dumps(frames)
    assert text_of(frames) == "It says A tool's output was refused by the policy 'codenames'.."
    assert frames[-1]["response"]["output"][0]["status"] == "failed"


async def test_output_that_a_policy_flags_is_given_and_noted() -> None:
    host = FakeHost({"find": Played(output="see falcon-77 for more")})
    flags = [BLOCKS[0] | {"action": "flag"}]
    async with open_client(HOSTED, host, policies=flags) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert text_of(frames) == "It says see falcon-77 for more."
    (found,) = frames[-1]["response"]["safety"]
    assert (found["place"], found["outcome"]) == ("tool_output", "flagged")


async def test_arguments_that_a_policy_blocks_reach_no_tool() -> None:
    host = FakeHost({"find": Played()})
    blocks = [{"name": "n", "kind": "patterns", "patterns": ['"n": 1'], "on": ["arguments"]}]
    async with open_client(HOSTED, host, policies=blocks) as client:
        await client.create(tools=TOOLS)
        frames = await client.step()
    assert frames[-1]["response"]["incomplete_details"] == {
        "reason": "content_filter",
        "policy": "n",
        "place": "arguments",
    }
    assert host.calls == []


@pytest.mark.parametrize("takes_s", [1.9, 2.0, 2.1])
async def test_approved_call_ends_with_the_pause_that_it_runs_in(
    takes_s: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # P123
    host = FakeHost({"pay": Played(takes_s=takes_s)}, needs_approval=["pay"])
    scenario = "{model: test, steps: [calls: [{name: look}, {name: pay}]]}"
    serving = open_served(scenario, hosts={"mcp": host}, **settings(pause_ttl_s=2))
    async with serving as served, served.connect() as client:
        await client.create(tools=TOOLS)
        request = pending(await client.step())[1]
        (live,) = served.app.responses.runs.lives.values()
        answer = {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}
        await client.send("response.append", input=[answer])
        await client.until("response.mcp_call_arguments.done")
        await trio.sleep(5)
    item = live.response.output[-1]
    assert isinstance(item, Hosted)
    assert item.data["status"] in (["completed"] if takes_s < 2 else ["completed", "incomplete"])
    assert live.response.snapshot().incomplete_details is not None
    assert "failed" not in caplog.text
