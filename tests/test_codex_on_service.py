"""Codex, unmodified, on a model that a service has: its tools, its instructions and its history as chat completions."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.contract_answers import Answer, called, said, thought
from tests.contract_server import ContractServer, Sent, open_contract_server
from tests.peers.codex import MODEL, NEW_MODEL, Codex, chaining_config, config
from tests.peers.npm import codex_binary
from tests.peers.recorder import open_recorder
from tests.peers.server import open_server

pytestmark = pytest.mark.peer

_DEADLINE_S: Final = 60  # a turn takes two seconds; the rest is for a machine that others use too
LIMITS: Final = {"x-ratelimit-limit-tokens-minute": "100", "x-ratelimit-remaining-tokens-minute": "60"}


def three_rounds(sent: Sent) -> Answer:
    """Two commands side by side, a third, and what came of it."""
    outputs = [message["content"] for message in sent.body["messages"] if message["role"] == "tool"]
    commands = {0: ["echo one > one.txt", "echo two > two.txt"], 2: ["cat one.txt two.txt"]}.get(len(outputs))
    if commands is None:
        return Answer(deltas=said("I saw: ", outputs[-1]), cached_tokens=2000, prompt_tokens=3000)
    calls = [
        delta
        for index, command in enumerate(commands)
        for delta in called("exec_command", f'{{"cmd": "{command}"}}', call_id=f"c{len(outputs)}{index}", index=index)
    ]
    return Answer(deltas=[*thought("Hm."), *said("I look."), *calls], prompt_tokens=1000 + len(outputs))


@pytest.mark.parametrize(
    ("version", "model", "lifecycle"), [("0.107.0", MODEL, "append"), ("0.171.0", NEW_MODEL, "chain")]
)
async def test_codex_works_on_a_services_chat_completions(
    version: str, model: str, lifecycle: str, tmp_path: Path
) -> None:
    binary = codex_binary(version)
    service = ContractServer(three_rounds, models=(model,), headers=LIMITS)
    settings = {"lifecycle": lifecycle, "model": model}
    with trio.fail_after(_DEADLINE_S):
        async with (
            open_contract_server(service) as url,
            open_server("cerebras", tmp_path / "server.log", base_url=url, **settings) as server,
            open_recorder(server.port) as recorder,
        ):
            text = config(recorder.url) if lifecycle == "append" else chaining_config(recorder.url)
            result = await Codex(binary, tmp_path / "codex", text).exec("Look around.")
    assert result.returncode == 0 and result.final_text.startswith("I saw: ")
    assert result.final_text.rstrip().endswith("one\ntwo")
    assert result.usage["cached_input_tokens"] == 2000
    assert len(service.asked) == 3
    for before, after in pairwise(sent.body for sent in service.asked):
        length = len(before["messages"])
        assert after["messages"][:length] == before["messages"], "the beginning never changes, or no cache would help"
        assert after["messages"][length]["reasoning"] == "Hm." and after["tools"] == before["tools"]
    names = [tool["function"]["name"] for tool in service.asked[0].body["tools"]]
    assert "exec_command" in names and all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
    (limits,) = recorder.received("codex.rate_limits")
    assert limits.body["rate_limits"]["primary"] == {"used_percent": 40.0, "window_minutes": 1}
