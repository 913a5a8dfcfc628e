"""The demos against a real server process: each must finish and quote what its tools returned."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.trace import read_trace

ROOT = Path(__file__).parent.parent
LONGLOOP = [sys.executable, "-m", "engine"]
AGENTS = ["agent_stateless", "agent_chain", "agent_append", "agent_inject"]
DEMOS = [
    *AGENTS[1:],
    *("openai_append", "openai_chain", "openai_http", "openai_inject", "agents_python"),
    *("plain_asyncio", "raw_frames", "many_runs"),
]


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """A server with these options, its data in a folder of its own; it prints its URL when it listens."""
    command = [*LONGLOOP, "serve", "--port", "0", "--set", f"data_dir={folder}", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1].replace("ws://", "http://")
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the scripted model."""
    with served(tmp_path_factory.mktemp("data"), "--backend", "script:demos/two_tools.yaml") as url:
        yield url


def finish(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("demo", "package"),
    [
        ("openai_append", "openai"),
        *((demo, "websockets") for demo in ("plain_asyncio", "raw_frames", *AGENTS[1:])),
        ("agent_stateless", "json"),  # needs nothing
    ],
)
def test_demo_runs_both_tools(url, demo, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    done = finish([sys.executable, f"demos/{demo}.py", "--url", url])
    assert done.returncode == 0, done.stderr
    assert "°C in Oslo" in done.stdout


@pytest.mark.peer
@pytest.mark.parametrize("demo", DEMOS)
def test_demo_without_a_server_fails(demo):
    if importlib.util.find_spec("openai") is None:
        pytest.skip("needs the clients extra")
    done = finish([sys.executable, f"demos/{demo}.py", "--url", "http://127.0.0.1:1"])
    said = "no server at http://127.0.0.1:1: start `longloop serve`\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("demo", AGENTS)
def test_an_agent_of_each_lifecycle_has_sixty_lines_and_reads_like_the_others(demo):
    lines = (ROOT / "demos" / f"{demo}.py").read_text().splitlines()
    assert len(lines) <= 60
    assert lines[2] == f"One of four that differ in nothing but their lifecycle: {', '.join(AGENTS)}."
    assert [line.split("(")[0] for line in lines if line.startswith("def ")][-1] == "def main"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/responses", "/v1/responses?lifecycle=append"])
@pytest.mark.parametrize("scheme", ["ws://", "http://", ""])
def test_demos_take_every_form_of_a_url(scheme, path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "demos")
    common = importlib.import_module("common")
    assert common.base_url(f"{scheme}h:1{path}") == "http://h:1"
    assert common.socket_url(common.base_url("wss://h/v1")) == "wss://h/v1/responses?lifecycle=append"


@pytest.mark.parametrize("demo", DEMOS)
def test_demo_without_its_package_says_what_to_install(demo, tmp_path):
    hide = "import sys, importlib.util as u, runpy; sys.path.insert(0, 'demos'); find = u.find_spec\n"
    hide += "hidden = ('openai', 'agents', 'websockets', 'jsonschema')\n"
    hide += "u.find_spec = lambda name, package=None: None if name in hidden else find(name, package)\n"
    done = finish([sys.executable, "-c", f"{hide}runpy.run_path('demos/{demo}.py', run_name='__main__')"])
    assert done.returncode == 1
    assert "pip install -e '.[clients]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.peer
def test_many_runs_without_token_events_says_what_is_not_checked(url):
    if importlib.util.find_spec("jsonschema") is None:
        pytest.skip("needs jsonschema")
    done = finish([sys.executable, "demos/many_runs.py", "--url", url, "--runs", "1"])
    assert done.returncode == 0, done.stderr
    assert "no token events came" in done.stdout


def test_research_agent_uses_both_hosted_tools_and_its_own(tmp_path):
    index = finish([*LONGLOOP, "index", "demos/research", "--set", f"data_dir={tmp_path}"])
    assert index.returncode == 0, index.stderr
    provider = [sys.executable, "demos/search_provider.py"]
    with subprocess.Popen(provider, cwd=ROOT, stdout=subprocess.PIPE, text=True) as searx:
        try:
            assert searx.stdout is not None
            web = f"web_search_url={searx.stdout.readline().strip()}"
            options = ("--backend", "script:demos/research.yaml", "--set", "file_search=true", "--set", web)
            with served(tmp_path, *options) as url:
                done = finish([sys.executable, "demos/research_agent.py", "--url", url])
        finally:
            searx.terminate()
    assert done.returncode == 0, done.stderr + done.stdout
    assert "searched files for ['spring tide height', 'ferry water level']: " in done.stdout
    assert "4.83 m above chart datum" in done.stdout
    assert "['https://www.example.org/tides']" in done.stdout


@pytest.mark.sandbox
def test_coding_agent_repairs_the_function(tmp_path):
    with served(tmp_path, "--backend", "script:demos/coding.yaml", "--set", "code_interpreter=true") as url:
        done = finish([sys.executable, "demos/coding_agent.py", "--url", url])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "in the sandbox, completed: (2, 2.5)" in done.stdout
    assert "The tests say: 2 passed." in done.stdout


def test_quickstart_takes_a_prompt_only():
    helped = finish(["demos/quickstart.sh", "--help"])
    assert (helped.returncode, helped.stdout.split("[")[0]) == (0, "usage: demos/quickstart.sh ")
    refused = finish(["demos/quickstart.sh", "--port"])
    assert refused.returncode == 2
    assert "no options, not '--port'" in refused.stderr


def test_run_command_against_a_server(url, tmp_path):
    trace = tmp_path / "trace.jsonl"
    command = ["run", "go", "--url", url, "--tool", "demos/tools.py", "--trace", str(trace)]
    done = finish([*LONGLOOP, *command])
    assert done.returncode == 0, done.stderr
    assert "■ completed" in done.stdout
    frames = [line.frame["type"] for line in read_trace(trace) if line.dir == "send"]
    assert frames[0] == "response.create"
    assert set(frames[1:]) == {"response.append"}


def test_run_command_with_a_server_of_its_own():
    command = ["run", "go", "--backend", "script:demos/two_tools.yaml", "--tool", "demos/tools.py", "--json"]
    done = finish([*LONGLOOP, *command])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    assert "°C in Oslo" in result["text"]


def test_run_command_names_a_tool_file_that_is_missing():
    done = finish([*LONGLOOP, "run", "go", "--tool", "none.py"])
    assert done.returncode == 2
    assert "there is no file none.py" in done.stderr
