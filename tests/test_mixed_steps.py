"""One step with calls of every kind: the server's function, an MCP tool with and without approval, a client's tool."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from engine.hosted.configured import open_hosts
from engine.hosted.fake import FakeHost, Played
from engine.settings import Settings
from engine.store_fake import MemoryStore
from tests.mcp_server import open_mcp_server
from tests.served import FUNCTION, Client, open_served

Json = dict[str, Any]
STEP = """
model: test
steps:
  - calls:
      - {name: count, arguments: {to: 3}}
      - {name: find, arguments: {query: tea}}
      - {name: look, arguments: {}}
      - {name: refund, arguments: {order: 7}}
  - text: "{outputs}"
"""
COUNT = '''
def count(to: int) -> str:
    """Count."""
    return " ".join(map(str, range(1, to + 1)))
'''
SAID = "1 2 3\norder 7 matches tea\na window\norder 7 is paid back"


class Desk:
    """Answers what a client has to answer, as soon as it is asked."""

    def __init__(self) -> None:
        self.answers: list[Json] = []

    def hear(self, frames: list[Json]) -> None:
        for item in (frame["item"] for frame in frames if frame["type"] == "response.output_item.done"):
            if item["type"] == "function_call":
                output = {"type": "function_call_output", "call_id": item["call_id"], "output": "a window"}
                self.answers.append(output)
            elif item["type"] == "mcp_approval_request":
                self.answers.append(
                    {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
                )


def text_of(response: Json) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


async def _over_websocket(client: Client, lifecycle: str, tools: list[Json]) -> list[Json]:
    """The items of the whole run."""
    desk = Desk()
    await client.create(tools=tools)
    frames: list[Json] = []
    while len(desk.answers) < 2:
        frames += await client.until("response.output_item.done")
        desk.hear(frames[-1:])
    response_id = frames[0]["response"]["id"]
    if lifecycle == "chain":
        first = (await client.step())[-1]["response"]
        await client.create(tools=tools, previous_response_id=response_id, input=desk.answers)
        last = (await client.step())[-1]["response"]
        assert text_of(last) == SAID
        return [*first["output"], *last["output"]]
    kind = {"append": "response.append", "inject": "response.inject"}[lifecycle]
    for answer in reversed(desk.answers):
        await client.send(kind, response_id=response_id, input=[answer])
    last = (await client.until("response.completed"))[-1]["response"]
    assert text_of(last) == SAID
    output: list[Json] = last["output"]
    return output


@pytest.mark.parametrize("lifecycle", ["append", "inject", "chain", "stateless"])
async def test_every_lifecycle_goes_through_a_mixed_step(lifecycle: str, tmp_path: Any) -> None:  # P122, P127
    (tmp_path / "abacus.py").write_text(COUNT)
    settings: Json = {
        "tools": [str(tmp_path / "abacus.py")],
        "mcp_hosts": ["127.0.0.1"],
        "mcp_networks": ["127.0.0.0/8"],
    }
    with open_mcp_server() as peer:
        remote = {"type": "mcp", "server_label": "shop", "server_url": peer.url}
        asks = {"require_approval": {"never": {"tool_names": ["find"]}}, "allowed_tools": ["find", "refund"]}
        tools = [FUNCTION, {"type": "mcp", "server_label": "abacus"}, remote | asks]
        transport = {} if lifecycle == "stateless" else {"lifecycle": lifecycle}
        async with (
            open_hosts(Settings(**settings)) as hosts,
            open_served(STEP, hosts=hosts, store=MemoryStore(), **settings, **transport) as served,
        ):
            if lifecycle == "stateless":
                items = await _over_http(served.http(), tools)
            else:
                async with served.connect() as client:
                    items = await _over_websocket(client, lifecycle, tools)
    assert sorted(item["type"] for item in items) == sorted(
        ["mcp_list_tools", "mcp_call", "mcp_call", "function_call", "mcp_approval_request", "mcp_call", "message"]
    )
    first, *calls = peer.calls
    assert first == "tools/list"
    assert sorted(calls) == ["find tea", "refund 7"]  # at once, in append


async def _over_http(http: Any, tools: list[Json]) -> list[Json]:
    """The items of two responses, the second of which goes on from the first."""
    first = (await http.create(input="go", tools=tools)).json
    desk = Desk()
    desk.hear([{"type": "response.output_item.done", "item": item} for item in first["output"]])
    second = (await http.create(input=desk.answers, previous_response_id=first["id"], tools=tools)).json
    assert text_of(second) == SAID
    return [*first["output"], *second["output"]]


@pytest.mark.parametrize(
    ("counts_s", "looks_s", "approves_s", "refunds_s", "expected_s"),
    [
        (4.0, 1.0, 1.0, 1.0, 4.0),  # the hosted call is the slowest
        (1.0, 4.0, 1.0, 1.0, 4.0),  # the client's
        (1.0, 3.0, 1.0, 3.0, 4.0),  # the one that had to be approved
        (1.0, 1.0, 4.0, 0.5, 4.5),  # the approval
    ],
)
async def test_step_takes_as_long_as_its_slowest_tool(
    counts_s: float, looks_s: float, approves_s: float, refunds_s: float, expected_s: float, autojump_clock: MockClock
) -> None:  # P122, P127
    host = FakeHost(
        {
            "count": Played(output="1 2 3", takes_s=counts_s),
            "find": Played(output="order 7 matches tea"),
            "refund": Played(output="order 7 is paid back", takes_s=refunds_s),
        },
        needs_approval=["refund"],
    )
    settings: Json = {"tools": ["fake"]}
    async with open_served(STEP, hosts={"mcp": host}, **settings) as served, served.connect() as client:
        began = trio.current_time()
        await client.create(tools=[FUNCTION, {"type": "mcp", "server_label": "fake"}])
        desk = Desk()
        while len(desk.answers) < 2:
            desk.hear([await client.receive()])
        look, approval = desk.answers

        async def answer(after_s: float, item: Json) -> None:
            await trio.sleep(after_s)
            await client.send("response.append", input=[item])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, looks_s, look)
            nursery.start_soon(answer, approves_s, approval)
            last = (await client.until("response.completed"))[-1]["response"]
        assert trio.current_time() - began == pytest.approx(expected_s, abs=0.01)
    assert text_of(last) == SAID
