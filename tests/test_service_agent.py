"""The service agent of demos/ against real processes: the shop's MCP server and longloop."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVE = [
    *(sys.executable, "-m", "engine", "serve", "--port", "0", "--backend", "script:demos/service.yaml"),
    *("--set", 'mcp_hosts=["127.0.0.1"]', "--set", 'mcp_networks=["127.0.0.0/8"]'),
    *("--set", "store=none", "--set", "ledger=none"),
]


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's process, and the URL that its first line ends with."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1], server
        finally:
            server.terminate()


@pytest.mark.peer
@pytest.mark.parametrize("approve", ["yes", "no"])
def test_service_agent_pays_back_only_what_is_approved(approve: str) -> None:  # P127
    if importlib.util.find_spec("openai") is None:
        pytest.skip("needs the clients extra")
    with started([sys.executable, "demos/shop_server.py", "--port", "0"]) as (shop, peer), started(SERVE) as (url, _):
        command = [sys.executable, "demos/service_agent.py", "--url", url, "--shop", shop, "--approve", approve]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | {"NO_COLOR": "1"}
        )
        assert done.returncode == 0, done.stderr
        peer.terminate()
        assert peer.stdout is not None
        paid = peer.stdout.read()
    assert "tools of shop: find_order, refund" in done.stdout
    assert 'find_order({"number": 4711}): a teapot' in done.stdout
    assert '? shop.refund({"number": 4711' in done.stdout
    if approve == "yes":
        assert paid.startswith("paid back: order 4711")
        assert paid.split()[-1] in done.stdout.splitlines()[-1]
    else:
        assert paid == ""
        assert "did not approve" in done.stdout


def test_run_says_how_a_call_is_approved() -> None:  # P127
    with started([sys.executable, "demos/shop_server.py", "--port", "0"]) as (shop, _), started(SERVE) as (url, _):
        command = [sys.executable, "-m", "engine", "run", "Help.", "--url", url, "--mcp", f"shop={shop}"]
        for flags, said in (((), "--approve approves such calls"), (("--approve",), "a teapot")):
            done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert said in " ".join(done.stdout.split())
            assert ("was not approved" in done.stdout) is not bool(flags)
