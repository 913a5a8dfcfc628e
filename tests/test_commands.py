"""The commands: what the user typed and cannot be done is said in one sentence."""

import io
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

from engine.backends.scenario import resolve_scenario
from engine.backends.script import ScriptBackend
from engine.commands.backend import choose_backend
from engine.commands.models import models_command
from engine.commands.serve import Announcer, UsageError, read_settings
from engine.errors import BackendError, RequestError
from engine.keyfile import load_key
from engine.server.app import serve
from engine.settings import Settings

ROOT = Path(__file__).parent.parent


def longloop(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def fault(file: Path | None = None, assignments: list[str] | None = None, **flags: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read_settings(file, assignments or [], flags)
    return str(caught.value)


def test_missing_settings_file_is_named() -> None:
    done = longloop("serve", "--config", "nosuch.toml")
    assert (done.returncode, done.stderr) == (2, "longloop: --config: There is no file nosuch.toml.\n")


def test_faults_of_a_settings_file_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "longloop.toml"
    for text, said in [
        ("port = 'x'", f"Setting port in {file}: "),
        ("ports = 1", f"unknown setting 'ports' in {file}. Did you mean 'port'?"),
        ("port", f"{file}: "),
        ("[models.a]\nbakend = 'local'", f"unknown setting 'models.a.bakend' in {file}. Did you mean 'backend'?"),
        ("[models.a.defaults]\ntemp = 1", f"unknown setting 'models.a.defaults.temp' in {file}."),
        ("[models.a]\nmax_runs = 0", f"Setting models.a.max_runs in {file}: "),
    ]:
        file.write_text(text)
        assert fault(file).startswith(said)
    file.write_text("port = 1")
    assert fault(file, port="x").startswith("Setting port: ")
    monkeypatch.setenv("LONGLOOP_PORT", "y")
    assert fault(file).startswith("Setting port in LONGLOOP_PORT: ")


def test_faults_of_assignments_name_the_setting() -> None:
    assert fault(assignments=["nonsense=1"]).startswith("unknown setting 'nonsense'.")
    assert fault(assignments=["port=x"]).startswith("Setting port: ")
    wanted = "Setting web_search_url: a URL of http or https with {query} in it."
    assert fault(assignments=["web_search_url=http://x/"]) == wanted
    assert fault(assignments=["port"]) == "--set takes name=value, not 'port'."


def test_contradiction_is_said_in_one_sentence() -> None:
    said = fault(assignments=["pong_timeout_s=30"])
    assert said == ("pong_timeout_s (30) is longer than ping_every_s (20): the next ping would be due before the pong.")


def test_script_backend_without_a_scenario_asks_for_one() -> None:
    with pytest.raises(RequestError, match="Name a scenario, such as script:demo"):
        choose_backend(Settings(backend="script:"), lambda what, fraction: None)


def test_port_in_use_hints_at_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = longloop("serve", "--backend", "script:demo", "--port", str(port))
    assert done.returncode == 2
    assert f"longloop: Port {port} of 127.0.0.1 is in use" in done.stderr
    assert "--port 0" in done.stderr


def test_lines_to_be_copied_are_not_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LONGLOOP_DATA_DIR", str(tmp_path))
    folder = tmp_path / "models" / ("long-name" * 10)
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    models_command()
    assert f"  {folder.name}  {folder}" in capsys.readouterr().out.splitlines()


def test_serve_prints_its_url_and_a_hint_and_says_when_it_is_ready() -> None:
    command = [sys.executable, "-m", "engine", "serve", "--port", "0", "--backend", "script:demo"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        url = server.stdout.readline().split()[-1]
        server.stdout.close()  # as a script does that wants nothing but the URL
        said = [server.stderr.readline().rstrip("\n") for _ in range(3)]
        server.terminate()
        server.wait(30)
    assert said[0] == f"try: longloop run 'What is the weather in Paris?' --url {url}"
    readyz = url.replace("ws://", "http://").replace("/v1/responses", "/readyz")
    assert said[2] == f"ready: runs are sampled at once; {readyz} answers 200"


def test_a_key_that_is_none_keeps_it_from_starting(tmp_path: Path) -> None:
    (tmp_path / "sealing.key").write_bytes(b"short")
    done = longloop("serve", "--backend", "script:demo", "--port", "0", "--set", f"data_dir={tmp_path}")
    assert done.returncode == 2
    assert f"longloop: {tmp_path}/sealing.key has 5 bytes where a key has 64" in done.stderr


async def test_serve_seals_with_the_key_in_its_data_folder(tmp_path: Path) -> None:
    listening, settings = trio.Event(), Settings(port=0, data_dir=tmp_path)
    serve_demo = partial(
        serve,
        ScriptBackend([resolve_scenario("demo")]),
        settings,
        on_listening=lambda port: listening.set(),
        on_ready=lambda failure: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_demo)
        with trio.fail_after(5):
            await listening.wait()
        nursery.cancel_scope.cancel()
    assert load_key(tmp_path / "sealing.key") == (tmp_path / "sealing.key").read_bytes()


class Unloadable(ScriptBackend):
    """A backend whose model cannot be loaded."""

    async def wait_ready(self) -> None:
        raise BackendError("The model could not be loaded: no [weights]")


async def test_serve_says_why_it_is_not_ready_and_serves_on(capsys: pytest.CaptureFixture[str]) -> None:
    said = io.StringIO()
    announcer, told = Announcer("::1", Console(file=said)), trio.Event()

    def on_ready(failure: BackendError | None) -> None:
        announcer.ready(failure)
        told.set()

    backend = Unloadable([resolve_scenario("demo")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(serve, backend, Settings(port=0), on_listening=announcer.listening, on_ready=on_ready)
        )
        with trio.fail_after(5):
            await told.wait()
        nursery.cancel_scope.cancel()
    assert re.search(
        r"^not ready: The model .*: no \[weights\]; http://\[::1\]:\d+/readyz answers 503$", said.getvalue(), re.M
    )
    assert re.fullmatch(r"longloop listens on ws://\[::1\]:\d+/v1/responses\n", capsys.readouterr().out)


def test_version_and_defaults_are_told() -> None:
    assert longloop("--version").stdout.startswith("longloop 0.")
    said = " ".join(longloop("serve", "--help").stdout.replace("│", " ").split())
    for default in ("(default local)", "(default 127.0.0.1)", "(default 8765)"):
        assert default in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  "], "longloop: The prompt is empty."),
        (["x", "--url", "http://h:1", "--backend", "script:demo"], "longloop: --backend is for the server that starts"),
        (["x", "--max-output-tokens", "0"], "--max-output-tokens"),
        (["x", "--backend", "script:"], "Name a scenario, such as script:demo"),
    ],
)
def test_run_refuses_what_it_cannot_do(arguments: list[str], said: str) -> None:
    done = longloop("run", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_run_without_a_server_fails_at_once_with_a_hint() -> None:
    done = longloop("run", "x", "--url", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot connect to ws://127.0.0.1:1" in done.stderr
    assert "Start `longloop serve`" in done.stderr


def test_failed_run_says_so_in_its_last_line(tmp_path: Path) -> None:
    scenario = tmp_path / "fails.yaml"
    scenario.write_text("model: m\nsteps:\n- fail: {code: rate_limit_exceeded, message: Too much., status: 429}\n")
    done = longloop("run", "x", "--backend", f"script:{scenario}")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].endswith("■ failed (rate_limit_exceeded): Too much.")


def test_interrupted_run_says_so(tmp_path: Path) -> None:
    scenario = tmp_path / "slow.yaml"
    scenario.write_text("model: m\nsteps:\n- {text: hello, delay_ms: 60000}\n")
    command = [sys.executable, "-m", "engine", "run", "x", "--json", "--backend", f"script:{scenario}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()  # the run has begun
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=30)
    assert (run.returncode, said) == (130, "interrupted\n")
