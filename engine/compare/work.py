"""The run that every design does: a script of twenty tool calls, and a tool whose output depends on the call alone.

Nothing is inferred: the script backend plays the model at a set speed. Everything around it is real.
"""

import json
from typing import Any, Final

NUM_CALLS: Final = 20
TASK: Final = "Find out why the test suite fails and mend it."
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "read_file",
    "description": "Read a part of a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "part": {"type": "integer"}},
        "required": ["path", "part"],
    },
}
_LINE: Final = "    value_{part} = combine(value_{part}, offset={line})  # line {line} of part {part}\n"


def scenario(tokens_per_second: float) -> str:
    """The scenario as YAML; a speed of 0 means as fast as can be."""
    calls = [
        {"text": f"Step {number}: I look further.", "calls": [{"name": "read_file", "arguments": _arguments(number)}]}
        for number in range(NUM_CALLS)
    ]
    steps = [*calls, {"text": "The tests failed because part {turn} was read twice. I have mended it."}]
    pace = {"ttft_ms": 0, "tokens_per_second": tokens_per_second}
    return json.dumps({"model": "twenty calls", "pace": pace, "steps": steps})


def _arguments(number: int) -> dict[str, Any]:
    return {"path": f"src/module_{number % 4}.py", "part": number}


def call_tool(arguments: str) -> str:
    """The output of a call: some 30 lines, about 600 tokens."""
    part = json.loads(arguments)["part"]
    return "".join(_LINE.format(part=part, line=line) for line in range(30))


def answers(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs for the calls among these items."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": call_tool(item["arguments"])}
        for item in output
        if item["type"] == "function_call"
    ]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as two runs can be compared: ids are minted anew for each, so they go; everything else stays."""
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]
