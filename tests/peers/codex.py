"""Codex as its users run it: a native binary, a CODEX_HOME with a config, and the commands `exec` and `app-server`."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from tests.peers.app_server import AppServer, open_app_server

MODEL: Final = "gpt-5.2-codex"  # a slug Codex knows as one with parallel calls and apply_patch as a custom tool
NEW_MODEL: Final = "gpt-5.5"  # the same for releases that chain; later slugs want tools of another kind

_CONFIG: Final = """\
model = "demo"
model_provider = "longloop"

[model_providers.longloop]
name = "longloop"
base_url = "http://127.0.0.1:8765/v1"
supports_websockets = true

[features]
responses_websockets = true
"""
_README_URL: Final = "http://127.0.0.1:8765/v1"

_CONFIG: Final = """\
model = "{model}"
model_provider = "longloop"
check_for_update_on_startup = false
suppress_unstable_features_warning = true
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.longloop]
name = "longloop"
base_url = "{url}"
env_key = "LONGLOOP_API_KEY"
wire_api = "responses"
supports_websockets = {websockets}
request_max_retries = 0
stream_max_retries = {max_retries}
stream_idle_timeout_ms = 15000

[analytics]
enabled = false

[feedback]
enabled = false

"""
_APPENDING: Final = """
[features]
responses_websockets = true
runtime_metrics = {runtime_metrics}
"""


def config(url: str, *, max_retries: int = 0, timing: bool = False) -> str:
    """A config.toml for tests: no questions, no sandbox, no retries unless wanted, a key."""
    written = chaining_config(url, model=MODEL, max_retries=max_retries)
    return written + _APPENDING.format(runtime_metrics=str(timing).lower())


def chaining_config(url: str, *, model: str = NEW_MODEL, max_retries: int = 0, websockets: bool = True) -> str:
    """The same for releases that chain, over a WebSocket or over HTTP."""
    return _CONFIG.format(model=model, url=url, max_retries=max_retries, websockets=str(websockets).lower())


@dataclass(frozen=True)
class ExecResult:
    """What `codex exec --json` printed: one event a line."""

    returncode: int
    events: list[dict[str, Any]]
    stderr: str

    def items(self, type_: str) -> list[dict[str, Any]]:
        """The completed items of a type: `agent_message`, `command_execution`, `file_change`, `error`."""
        items = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in items if item["type"] == type_]

    @property
    def final_text(self) -> str:
        """What the user reads last."""
        return str(self.items("agent_message")[-1]["text"])

    @property
    def usage(self) -> dict[str, int]:
        """The turn's tokens as Codex counts them."""
        usage: dict[str, int] = self.events[-1]["usage"]
        return usage


class Codex:
    """One installation with its own home, config and working folder, all under `folder`."""

    def __init__(self, binary: Path, folder: Path, config: str) -> None:
        self.workdir = folder / "work"
        self._binary = binary
        self._home = folder / "home"
        for path in (self.workdir, self._home):
            path.mkdir(parents=True)
        (self._home / "config.toml").write_text(config, "utf-8")

    async def exec(self, prompt: str) -> ExecResult:
        """One user turn."""
        command = [str(self._binary), "exec", "--json", "--skip-git-repo-check", prompt]
        done = await trio.run_process(
            command,
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=str(self.workdir),
            env=self._environment(),
        )
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return ExecResult(done.returncode, events, done.stderr.decode())

    @asynccontextmanager
    async def open_app_server(self) -> AsyncIterator[AppServer]:
        """Its JSON-RPC server, for several turns of one process."""
        command = [str(self._binary), "app-server"]
        async with open_app_server(command, cwd=self.workdir, env=self._environment()) as server:
            yield server

    def _environment(self) -> dict[str, str]:
        closed = "http://127.0.0.1:9"  # discard: nothing listens, so whatever Codex wants outside fails at once
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "CODEX_HOME": str(self._home),
            "LONGLOOP_API_KEY": "a-key",
            "HTTPS_PROXY": closed,
            "NO_PROXY": "127.0.0.1,localhost",
        }
