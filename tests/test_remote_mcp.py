"""remote_mcp.py against a real server of the `mcp` package: listing, calls, approvals, errors, secrets."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio

from engine.hosted.configured import open_hosts
from engine.settings import Settings
from engine.sqlite_store import open_store
from tests.mcp_server import McpPeer, open_mcp_server
from tests.served import FUNCTION, Client, Served, open_served, pending

INFO = {"name": "raw", "version": "1"}
ALLOWED = {"mcp_hosts": ["127.0.0.1"], "mcp_networks": ["127.0.0.0/8"]}
SCENARIO = """
model: test
steps:
  - {call: {name: find, arguments: {query: tea}}}
  - text: "{last_output}"
"""
REFUND = """
model: test
steps:
  - {call: {name: refund, arguments: {order: 7}}}
  - text: "{last_output}"
"""


@pytest.fixture(scope="module")
def peer() -> Iterator[McpPeer]:
    with open_mcp_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _forget(peer: McpPeer) -> None:
    peer.calls.clear()
    peer.headers.clear()


def shop(peer: McpPeer, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "shop", "server_url": peer.url, "require_approval": "never"} | fields


@asynccontextmanager
async def open_shop(scenario: str, **more: Any) -> AsyncIterator[Served]:
    """A server that may connect to MCP servers on loopback."""
    settings = ALLOWED | more
    known = Settings(**{name: settings[name] for name in settings if name != "store"})
    async with open_hosts(known) as hosts, open_served(scenario, hosts=hosts, **settings) as served:
        yield served


@asynccontextmanager
async def open_client(scenario: str, **more: Any) -> AsyncIterator[Client]:
    async with open_shop(scenario, **more) as served, served.connect() as client:
        yield client


def text_of(frames: list[dict[str, Any]]) -> str:
    text: str = frames[-1]["response"]["output"][-1]["content"][0]["text"]
    return text


def kinds_of(frames: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in frames[-1]["response"]["output"]]


async def test_tools_are_listed_and_called(peer: McpPeer) -> None:  # P126
    async with open_client(SCENARIO) as client:
        await client.create(tools=[shop(peer)])
        frames = await client.step()
    types = [frame["type"].removeprefix("response.") for frame in frames[2:6]]
    assert types == ["output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"]
    assert frames[2]["item"]["tools"] == []
    listed = frames[5]["item"]
    assert (listed["server_label"], [tool["name"] for tool in listed["tools"]]) == (
        "shop",
        ["find", "refund", "weigh", "slow", "broken", "long", "routed"],
    )
    assert listed["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert listed["tools"][0]["input_schema"]["required"] == ["query"]
    assert text_of(frames) == "order 7 matches tea"
    call = frames[-1]["response"]["output"][1]
    assert (call["type"], call["name"], call["arguments"]) == ("mcp_call", "find", '{"query": "tea"}')
    assert peer.calls == ["tools/list", "find tea"]


@pytest.mark.parametrize(
    ("fields", "names"),
    [({"allowed_tools": ["find", "slow"]}, ["find", "slow"]), ({"allowed_tools": {"read_only": True}}, ["find"])],
)
async def test_only_allowed_tools_are_offered(peer: McpPeer, fields: dict[str, Any], names: list[str]) -> None:
    async with open_client(REFUND) as client:
        await client.create(tools=[shop(peer, **fields)])
        frames = await client.step()
    assert [tool["name"] for tool in frames[5]["item"]["tools"]] == names
    assert "refund" in frames[-1]["response"]["error"]["message"]  # which the scenario calls in vain
    assert peer.calls == ["tools/list"]


@pytest.mark.parametrize("lifecycle", ["append", "inject", "chain"])
@pytest.mark.parametrize("approve", [True, False])
async def test_call_that_needs_approval_waits_for_it(peer: McpPeer, lifecycle: str, approve: bool) -> None:  # P127
    tools = [shop(peer, require_approval="always")]
    async with open_client(REFUND, lifecycle=lifecycle) as client:
        await client.create(tools=tools)
        frames = await client.until("response.output_item.done")
        while frames[-1]["item"]["type"] != "mcp_approval_request":
            frames += await client.until("response.output_item.done")
        request = frames[-1]["item"]
        assert (request["name"], request["arguments"]) == ("refund", '{"order": 7}')
        assert peer.calls == ["tools/list"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
        response_id = frames[0]["response"]["id"]
        if lifecycle == "append":
            assert pending(await client.step()) == [request["id"]]
            await client.send("response.append", input=[answer])
        elif lifecycle == "inject":
            await client.send("response.inject", response_id=response_id, input=[answer])
        else:
            assert kinds_of(await client.step()) == ["mcp_list_tools", "mcp_approval_request"]
            await client.create(tools=tools, previous_response_id=response_id, input=[answer])
        frames = await client.step()
    assert peer.calls == ["tools/list"] + ["refund 7"] * approve
    assert text_of(frames) == (
        "order 7 is paid back" if approve else "The user did not approve this call, so it was not made."
    )
    before = [] if lifecycle == "chain" else ["mcp_list_tools", "mcp_approval_request"]
    assert kinds_of(frames) == [*before, *["mcp_call"] * approve, "message"]
    if approve:
        call = next(item for item in frames[-1]["response"]["output"] if item["type"] == "mcp_call")
        assert (call["approval_request_id"], call["status"]) == (request["id"], "completed")


async def test_approval_over_http_with_the_whole_history(peer: McpPeer) -> None:  # P127
    tools = [shop(peer, require_approval="always")]
    async with open_shop(REFUND) as served:
        http = served.http()
        first = (await http.create(input="go", tools=tools)).json
        request = first["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        message = {"type": "message", "role": "user", "content": "go"}
        second = (await http.create(input=[message, *first["output"], answer], tools=tools)).json
        assert [item["type"] for item in second["output"]] == ["mcp_list_tools", "mcp_call", "message"]
        assert second["output"][-1]["content"][0]["text"] == "order 7 is paid back"
        again = [message, *first["output"], answer, *second["output"], message]
        third = (await http.create(input=again, tools=tools)).json
    assert peer.calls.count("refund 7") == 1, third  # what was approved in the history has been run


async def test_approval_of_a_stored_response_after_a_restart(peer: McpPeer, tmp_path: Path) -> None:  # P125, P127
    tools = [shop(peer, require_approval="always")]
    settings = {"data_dir": tmp_path}
    async with open_store(Settings(**settings)) as store, open_shop(REFUND, store=store, **settings) as served:
        first = (await served.http().create(input="go", tools=tools)).json
    request = first["output"][-1]
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    async with open_store(Settings(**settings)) as store, open_shop(REFUND, store=store, **settings) as served:
        http = served.http()
        second = (await http.create(input=[answer], previous_response_id=first["id"], tools=tools)).json
        assert second["output"][-1]["content"][0]["text"] == "order 7 is paid back"
        listed = (await http.get(f"/v1/responses/{second['id']}/input_items?order=asc")).json["data"]
    assert [item["type"] for item in listed][:3] == ["message", "mcp_list_tools", "mcp_approval_request"]
    assert peer.num_lists == 1


async def test_secrets_are_neither_stored_nor_logged(
    peer: McpPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # P128
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.WARNING, "httpx2")  # as `longloop serve` has it: the URL of every request would be there
    secrets = {"authorization": "s3cret-token", "headers": {"X-Tenant": "s3cret-tenant"}}
    url = f"{peer.url}?key=s3cret-query"
    settings = {"data_dir": tmp_path}
    async with open_store(Settings(**settings)) as store, open_shop(SCENARIO, store=store, **settings) as served:
        answer = await served.http().create(input="go", tools=[shop(peer, **secrets, server_url=url)])
        assert answer.json["output"][-1]["content"][0]["text"] == "order 7 matches tea"
        assert "s3cret" not in str(answer.json)
        bad = shop(peer, **secrets, server_url="http://127.0.0.1:9/?key=s3cret-query")
        assert (await served.http().create(input="go", tools=[bad])).json["output"][0]["error"]
    assert all(headers["authorization"] == "Bearer s3cret-token" for headers in peer.headers)
    assert all(headers["x-tenant"] == "s3cret-tenant" for headers in peer.headers)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("step", "settings", "said"),
    [
        ("{name: broken, arguments: {}}", {}, "Error executing tool broken"),
        ("{name: find, arguments: {}}", {}, "query"),
        ("{name: find, arguments: '[1]'}", {}, "The arguments are no JSON object."),
        ("{name: slow, arguments: {seconds: 5}}", {"hosted_timeout_s": 0.5}, "did not finish within 0.5 s"),
        ("{name: long, arguments: {chars: 90000}}", {"max_mcp_bytes": 20000}, "more than may be read"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_told_to_the_model(
    peer: McpPeer, step: str, settings: dict[str, Any], said: str
) -> None:  # P121
    scenario = f"""
model: test
steps:
  - {{call: {step}}}
  - text: "{{last_output}}"
"""
    async with open_client(scenario, **settings) as client:
        await client.create(tools=[shop(peer)])
        frames = await client.step()
    call = frames[-1]["response"]["output"][1]
    assert (call["type"], call["status"]) == ("mcp_call", "failed")
    assert said in call["error"]["content"][0]["text"]
    assert said in text_of(frames)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/mcp", "cannot be reached"),
        ("http://10.0.0.1:9/mcp", "private, local"),
        ("http://[::1]:9/mcp", "private, local"),
        ("http://169.254.169.254/mcp", "private, local"),
    ],
)
async def test_server_that_cannot_be_listed_has_no_tools(peer: McpPeer, url: str, why: str) -> None:  # P126, P129
    async with open_client('{model: test, steps: [text: "alone"]}', mcp_hosts=["*"]) as client:
        await client.create(tools=[shop(peer, server_url=url)])
        frames = await client.step()
    assert frames[4]["type"] == "response.mcp_list_tools.failed"
    assert why in frames[5]["item"]["error"]
    assert text_of(frames) == "alone"


async def test_server_that_says_nothing_is_given_up() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    silent = {"type": "mcp", "server_label": "shop", "server_url": f"http://127.0.0.1:{port}/mcp"}
    async with listeners[0], open_client('{model: t, steps: [text: "alone"]}', mcp_list_timeout_s=0.3) as client:
        await client.create(tools=[silent])
        frames = await client.step()
    assert frames[5]["item"]["error"] == "the server took too long"
    assert text_of(frames) == "alone"


@contextmanager
def open_raw_server(of_list: dict[str, Any]) -> Iterator[str]:
    """The URL of a server that answers `tools/list` with this, which none of the package's would."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            head = {"jsonrpc": "2.0", "id": asked.get("id")}
            match asked["method"]:
                case "initialize":
                    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO}
                    self._answer(head | {"result": result})
                case "tools/list":
                    self._answer(head | of_list)
                case _ if "id" in asked:
                    self._answer(head | {"error": {"code": -32601, "message": "unknown"}})
                case _:
                    self._answer({}, 202)

        def _answer(self, value: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join()


async def test_tool_that_is_listed_twice_counts_once_and_one_that_is_too_long_not(peer: McpPeer) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("a", "b", "a")]
    tools.append({"name": "c", "inputSchema": {"type": "object", "description": "x" * 100_000}})  # too long
    with open_raw_server({"result": {"tools": tools}}) as url:
        async with open_client('{model: test, steps: [text: "alone"]}') as client:
            await client.create(tools=[shop(peer, server_url=url)])
            frames = await client.step()
    assert [tool["name"] for tool in frames[5]["item"]["tools"]] == ["a", "b"]


async def test_what_a_server_says_of_its_fault_is_short_and_on_one_line(
    peer: McpPeer, caplog: pytest.LogCaptureFixture
) -> None:
    with open_raw_server({"error": {"code": 1, "message": "out of\npaper " + "x" * 3_000_000}}) as url:
        async with open_client('{model: test, steps: [text: "alone"]}') as client:
            await client.create(tools=[shop(peer, server_url=url)])
            error = (await client.step())[5]["item"]["error"]
    assert error.startswith("the server says: out of paper xxx") and len(error) < 1_100
    assert max(len(record.getMessage()) for record in caplog.records) < 1_200


async def test_no_more_tools_are_taken_than_a_run_may_have(peer: McpPeer) -> None:
    async with open_client(SCENARIO, max_tools=2) as client:
        await client.create(tools=[shop(peer)])
        frames = await client.step()
    assert [tool["name"] for tool in frames[5]["item"]["tools"]] == ["find", "refund"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_url": "http://example.com/mcp"}, "tools[1].server_url"),
        ({"server_url": "ftp://127.0.0.1/"}, "tools[1].server_url"),
        ({"server_url": "http://"}, "tools[1].server_url"),
        ({"server_url": None}, "tools[1].server_url"),
        ({"headers": {"a b": "c"}}, "tools[1].headers"),
        ({"headers": {"a": "c\nd"}}, "tools[1].headers"),
    ],
)
async def test_definition_that_is_not_allowed_is_refused(peer: McpPeer, fields: dict[str, Any], param: str) -> None:
    async with open_client(SCENARIO) as client:  # P129
        await client.create(tools=[FUNCTION, shop(peer, **fields)])
        error = (await client.step())[-1]
    assert (error["status"], error["error"]["param"]) == (400, param)
    assert peer.headers == []


async def test_servers_without_mcp_hosts_skip_such_tools(peer: McpPeer) -> None:
    async with open_served('{model: test, steps: [text: "alone"]}') as served, served.connect() as client:
        await client.create(tools=[shop(peer, authorization="s3cret")])
        response = (await client.step())[-1]["response"]
    assert [skipped["type"] for skipped in response["skipped_tools"]] == ["mcp"]
    assert "authorization" not in response["tools"][0]


async def test_argument_that_is_to_be_in_a_header_is_put_there(peer: McpPeer) -> None:
    scenario = "{model: test, steps: [call: {name: routed, arguments: {region: north}}, text: '{last_output}']}"
    async with open_client(scenario) as client:
        await client.create(tools=[shop(peer)])
        assert text_of(await client.step()) == "north"
    assert peer.calls[-1] == "routed north"


async def test_ended_run_breaks_off_its_call(peer: McpPeer) -> None:
    scenario = "{model: test, steps: [call: {name: slow, arguments: {seconds: 30}}]}"
    async with open_client(scenario) as client:
        await client.create(tools=[shop(peer)])
        await client.until("response.mcp_call_arguments.done")
        with trio.fail_after(5):
            await trio.to_thread.run_sync(peer.slow_began.wait, abandon_on_cancel=True)
        await client.send("response.cancel")
        frames = await client.step()
    assert frames[-1]["response"]["output"][1]["status"] == "incomplete"


async def test_append_to_a_completed_run_has_its_tools_still(peer: McpPeer) -> None:
    async with open_client(SCENARIO.replace("steps:\n", "steps:\n  - text: hi\n")) as client:
        await client.create(tools=[shop(peer)])
        await client.step()
        await client.send("response.append", input="go")
        frames = await client.step()
    assert text_of(frames) == "order 7 matches tea"
    assert peer.num_lists == 1
