"""The built-in tools' items in what is kept and gone on from: stored responses, chains, full histories."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.hosted.base import Host
from engine.hosted.code_interpreter import CodeInterpreterHost
from engine.hosted.containers import Containers
from engine.hosted.file_index import FileIndex
from engine.hosted.file_search import FileSearchHost
from engine.hosted.sandbox import SandboxLimits
from engine.hosted.web_results import WebResult
from engine.hosted.web_search import WebSearchHost
from engine.store_fake import MemoryStore
from tests.served import FUNCTION, open_served, pending
from tests.test_code_interpreter import FakeSandbox
from tests.test_web_search import FakeWeb

DEFINITIONS = {
    "file_search": {"type": "file_search", "vector_store_ids": ["notes"]},
    "web_search": {"type": "web_search"},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
}
INCLUDE = ["file_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"]
ON = {"file_search": True, "web_search_url": "http://search.test/?q={query}", "code_interpreter": True}
ALL = """
model: test
steps:
  - calls:
      - {name: file_search, arguments: {queries: [tide]}}
      - {name: look}
      - {name: web_search, arguments: {query: tide}}
      - {name: code_interpreter, arguments: {code: "6 * 7"}}
  - text: "{outputs}"
"""
KINDS = ["file_search_call", "function_call", "web_search_call", "code_interpreter_call"]
TOLD = ["[1] tide.md (score 1.00)\nThe tide was high.", "cold", "[1] T\nhttps://a.test/\nabout", "42"]


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[dict[str, Host]]:
    """All three, each with one thing to find."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tide.md").write_text("The tide was high.")
    with FileIndex.open(tmp_path) as index:
        index.add_folder("notes", tmp_path / "notes", lambda done, total: None)
    async with Containers.open(idle_s=100, max_containers=9) as containers:
        yield {
            "file_search": FileSearchHost(tmp_path, 10),
            "web_search": WebSearchHost(FakeWeb([WebResult("https://a.test/", "T", "about")])),
            "code_interpreter": CodeInterpreterHost(FakeSandbox(), SandboxLimits(), containers),
        }


@asynccontextmanager
async def serving(hosts: dict[str, Host], **more: Any) -> AsyncIterator[Any]:
    async with open_served(ALL, hosts=hosts, **ON, **more) as served:
        yield served


TOOLS = [FUNCTION, *DEFINITIONS.values()]


def texts(response: dict[str, Any]) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


async def test_all_of_them_run_in_one_step_with_the_clients_tool(hosts: dict[str, Host]) -> None:
    async with serving(hosts) as served, served.connect() as client:
        await client.create(tools=TOOLS, include=INCLUDE)
        frames = await client.step()
        await client.answer((pending(frames)[0], "cold"))
        frames = await client.step()
    response = frames[-1]["response"]
    assert [item["type"] for item in response["output"]] == [*KINDS, "message"]
    assert texts(response) == "\n".join(TOLD)


async def test_a_chain_goes_on_from_them(hosts: dict[str, Host]) -> None:  # ogx-ai/ogx#3268
    async with serving(hosts, lifecycle="chain") as served, served.connect() as client:
        await client.create(tools=TOOLS)
        first = (await client.step())[-1]["response"]
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}
        await client.create(tools=TOOLS, previous_response_id=first["id"], input=[output])
        second = (await client.step())[-1]["response"]
    assert [item["type"] for item in first["output"]] == KINDS
    assert texts(second) == "\n".join(TOLD)


async def test_they_are_stored_whole_and_read_back_by_another_server(hosts: dict[str, Host]) -> None:
    store = MemoryStore()
    async with serving(hosts, store=store) as served:
        made = (await served.http().create(input="go", tools=TOOLS, include=INCLUDE)).json
        assert [item["type"] for item in made["output"]] == KINDS
    async with serving(hosts, store=store) as served:
        http = served.http()
        assert (await http.get(f"/v1/responses/{made['id']}")).json["output"] == made["output"]
        output = {"type": "function_call_output", "call_id": made["output"][1]["call_id"], "output": "cold"}
        again = (await http.create(input=[output], tools=TOOLS, previous_response_id=made["id"])).json
        assert texts(again) == "\n".join(TOLD)


async def test_a_history_with_them_is_taken_from_a_client_that_sends_everything(hosts: dict[str, Host]) -> None:
    async with serving(hosts) as served:
        http = served.http()
        made = (await http.create(input="go", tools=TOOLS, include=INCLUDE)).json
        output = {"type": "function_call_output", "call_id": made["output"][1]["call_id"], "output": "cold"}
        history = [{"role": "user", "content": "go"}, *made["output"], output]
        again = (await http.create(input=history, tools=TOOLS)).json
        assert again["status"] == "completed"
