"""SIGHUP to a server with a settings file: its models are read again, whatever goes on."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.test_commands import ROOT

MODELS = """
[models.a]
backend = "script:demo"
[models.b]
backend = "script:demo"
aliases = ["gpt-5"]
"""


class Server:
    """A server process and what it says."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().split()[-1].replace("ws://", "http://")

    def hang_up(self) -> str:
        """Send SIGHUP, and wait for the line that says what came of it."""
        self.process.send_signal(signal.SIGHUP)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "SIGHUP: " in line:
                return line.partition("SIGHUP: ")[2].strip()
        raise AssertionError("the server ended")

    def models(self) -> list[str]:
        with urllib.request.urlopen(self.url.replace("/responses", "/models"), timeout=20) as reply:
            return [model["id"] for model in json.load(reply)["data"]]


@contextmanager
def serving(folder: Path, text: str) -> Iterator[tuple[Server, Path]]:
    file = folder / "longloop.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "engine", "serve", "--config", str(file), "--port", "0"]
    command += ["--set", f"data_dir={folder}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Server(process), file
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_models_are_read_again(tmp_path: Path) -> None:
    with serving(tmp_path, MODELS) as (server, file):
        assert server.models() == ["script:a", "script:b"]
        file.write_text(MODELS.replace("models.a", "models.c"))
        assert server.hang_up() == "the models are now script:c, script:b"
        assert server.models() == ["script:c", "script:b"]
        for wrong, said in [
            ("[models", "Expected"),
            ("[models.a]\nbackend = 'script:no.yaml'", "no.yaml"),
            ("max_lanes = 'x'", "Setting max_lanes in"),
            ("", "The settings name no models."),
            ("models = " + "[" * 3000, "nested too deeply"),
        ]:
            file.write_text(wrong)
            answer = server.hang_up()
            assert answer.startswith("the models stay as they are: ")
            assert said in answer
            assert server.models() == ["script:c", "script:b"]
        file.write_text(MODELS)
        assert server.hang_up() == "the models are now script:a, script:b"
    assert server.process.returncode == 0


def test_server_of_one_backend_has_nothing_to_read_again(tmp_path: Path) -> None:
    with serving(tmp_path, "backend = 'script:demo'") as (server, _):
        assert server.hang_up() == "only [models] can be read again, and the settings had none"
        assert server.models() == ["script:demo"]


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["a terminal", "nohup"])
def test_server_without_a_file_stops_in_order_when_its_terminal_goes_away(
    tmp_path: Path, disposition: signal.Handlers
) -> None:
    """Unless it was started by nohup: what a process ignores, its children do."""
    command = [sys.executable, "-m", "engine", "serve", "--backend", "script:demo", "--port", "0"]
    command += ["--set", f"data_dir={tmp_path}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        server = Server(process)
        try:
            process.send_signal(signal.SIGHUP)
            if disposition is signal.SIG_IGN:
                assert server.models() == ["script:demo"]
                process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
