"""A coding agent: it repairs a function in a folder on this machine, and tries ideas in the server's sandbox.

longloop serve --backend script:demos/coding.yaml --set code_interpreter=true      # needs bubblewrap
python demos/coding_agent.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio
from common import read_url

from engine.client import RunFailed, open_run

PROMPT = (
    "median.py is wrong for some lists. Find out how, repair it, and run the tests. Try ideas in the sandbox first."
)
SANDBOX = {"type": "code_interpreter", "container": {"type": "auto"}}
WRONG = '''def median(values):
    """The middle one, or the mean of the two in the middle."""
    return sorted(values)[len(values) // 2]
'''
TESTS = """from median import median

assert median([3, 1, 2]) == 2
assert median([4, 1, 3, 2]) == 2.5
print("2 passed")
"""


class Folder:
    """The agent's tools: they see one folder and nothing else."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).resolve()
        self._file("median.py").write_text(WRONG)
        self._file("test_median.py").write_text(TESTS)

    def _file(self, path: str) -> Path:
        file = (self._path / path).resolve()
        if not file.is_relative_to(self._path):
            raise ValueError(f"{path} is not in the folder")
        return file

    def read_file(self, path: str) -> str:
        """Read a file."""
        return self._file(path).read_text()

    def write_file(self, path: str, text: str) -> str:
        """Write a file, whole."""
        self._file(path).write_text(text)
        return f"{len(text)} characters written to {path}"

    def run_tests(self) -> str:
        """Run the tests. Says what failed."""
        command = [sys.executable, "test_median.py"]
        done = subprocess.run(command, cwd=self._path, capture_output=True, text=True, timeout=20)
        return done.stdout.strip() or done.stderr.strip()[-500:]


def show(item: dict[str, Any]) -> None:
    """A finished item, in a line."""
    if item["type"] == "function_call":
        print(f"here: {item['name']}({item['arguments'][:60]})")
    elif item["type"] == "code_interpreter_call":
        logs = "".join(output["logs"] for output in item["outputs"] or [])
        print(f"in the sandbox, {item['status']}: {logs.strip()}")


async def main() -> None:
    """One run; the tests in the folder decide whether it did its work."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path)
        tools = [folder.read_file, folder.write_file, folder.run_tests, SANDBOX]
        shown = ["code_interpreter_call.outputs"]
        try:
            async with open_run(read_url(), input=PROMPT, tools=tools, include=shown) as run:
                async for event in run:
                    if event["type"] == "response.output_item.done":
                        show(event["item"])
                result = await run.result()
        except RunFailed as error:
            sys.exit(f"the run did not complete: {error}")
        print(result.text)
        if folder.run_tests() != "2 passed":
            sys.exit("the function is not repaired")
        if not any(item["type"] == "code_interpreter_call" for item in result.output):
            sys.exit("nothing was tried in the sandbox")


if __name__ == "__main__":
    trio.run(main)
