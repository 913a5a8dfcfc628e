"""Connections are handed on, made ahead where there is a page for it, and not kept without end."""

import pytest
import trio

from engine.backends.remote import lines as lines_module
from engine.backends.remote.lines import Lines
from engine.backends.remote.link import Link, LinkConfig
from tests.contract_server import ContractServer, open_contract_server


async def test_a_line_is_warm_before_it_is_taken_and_taken_again_afterwards() -> None:
    server = ContractServer()
    with trio.fail_after(10):
        async with open_contract_server(server) as url, trio.open_nursery() as nursery:
            lines = Lines(nursery, Link(LinkConfig(base_url=f"{url}/v1")), "/tcp_warming")
            await trio.testing.wait_all_tasks_blocked()
            first = lines.take()
            await first.get("/models")
            lines.give_back(first)
            assert lines.take() is first
            await first.get("/models")
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await lines.aclose()
    asked = next(sent for sent in server.sent if sent.path == "/v1/models")  # the next run's line is warmed meanwhile
    mine = [sent.path for sent in server.sent if sent.connection == asked.connection]
    assert mine == ["/v1/tcp_warming", "/v1/models", "/v1/models"]


async def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "_MAX_SPARE", 1)
    async with trio.open_nursery() as nursery:
        lines = Lines(nursery, Link(LinkConfig(base_url="http://127.0.0.1:1")), None)
        first, second = lines.take(), lines.take()
        assert first is not second
        lines.give_back(first)
        lines.give_back(second)
        assert lines.take() is first and lines.take() is not second
        await lines.aclose()
