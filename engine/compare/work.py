"""The run that every design does: what the agent is told, what it says and calls, what its tools return and how long
they take.

Nothing is inferred: the script backend plays the model at a set speed. The tools' outputs come from really running the
commands once, in a copy of the small repository, before anything is measured; from then on they are played back, and
take the time that they took.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from engine.backends.pieces import filler_pieces, has_braces_to_fill, split_pieces

TOKENS_PER_STEP: Final = 60
TOOL_NAME: Final = "run"
_IDS: Final = ("id", "call_id")


class Step(msgspec.Struct, frozen=True):
    """What the agent says before it calls, and the commands that it calls side by side."""

    says: str
    run: tuple[str, ...]


class Script(msgspec.Struct, frozen=True):
    """What lies in the folder, but for the repository."""

    task: str
    answer: str
    steps: tuple[Step, ...]
    instructions: str = ""
    tools: list[dict[str, Any]] = []


class ToolRun(msgspec.Struct, frozen=True):
    """What a command printed and how long it took."""

    output: str
    seconds: float


class Work(msgspec.Struct, frozen=True):
    """All that is fixed before the first measurement. `runs` has each command once."""

    script: Script
    runs: dict[str, ToolRun]


def read_script(folder: Path) -> Script:
    """The script of a folder like `demos/compare`. Raises OSError, msgspec.ValidationError, yaml.YAMLError."""
    script = msgspec.convert(yaml.safe_load((folder / "steps.yaml").read_text("utf-8")), Script)
    return msgspec.structs.replace(
        script,
        instructions=(folder / "instructions.md").read_text("utf-8"),
        tools=json.loads((folder / "tools.json").read_text("utf-8")),
    )


def first_steps(script: Script, num_calls: int) -> list[Step]:
    """The steps that make so many calls. Raises ValueError when there are too few."""
    steps, missing = list[Step](), num_calls
    for step in script.steps:
        if not missing:
            break
        steps.append(msgspec.structs.replace(step, run=step.run[:missing]))
        missing -= len(steps[-1].run)
    if missing:
        raise ValueError(f"the script makes {num_calls - missing} calls, not {num_calls}")
    return steps


def commands_of(steps: Iterable[Step]) -> list[str]:
    """The commands that have to be run, each once, in the order in which they first come."""
    return list(dict.fromkeys(command for step in steps for command in step.run))


def scenario(script: Script, num_calls: int, tokens_per_second: float) -> str:
    """What the script backend plays for it (JSON, which is YAML): every step has the same number of tokens."""
    steps = [_scripted(step) for step in first_steps(script, num_calls)]
    last = {"text": _filled(script.answer, TOKENS_PER_STEP)}
    pace = {"ttft_ms": 0, "tokens_per_second": tokens_per_second}
    return json.dumps({"pace": pace, "steps": [*steps, last]})


def _scripted(step: Step) -> dict[str, Any]:
    arguments = [json.dumps({"command": command}) for command in step.run]
    num_left = TOKENS_PER_STEP - sum(len(split_pieces(text)) for text in arguments)
    calls = [{"name": TOOL_NAME, "arguments": _literal(text)} for text in arguments]
    return {"text": _filled(step.says, num_left), "calls": calls}


def _filled(text: str, num_tokens: int) -> str:
    """The text with as many tokens of the script backend; a long one is cut, a short one goes on with filler."""
    pieces = split_pieces(text)[:num_tokens]
    rest = filler_pieces(num_tokens - len(pieces))
    return _literal("".join(pieces) + (" " + "".join(rest) if rest else ""))


def _literal(text: str) -> str:
    if has_braces_to_fill(text):
        raise ValueError(f"the script backend would fill in the braces of {text!r}")
    return text


def answer(work: Work, call: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The output for a `function_call` item, and the seconds that the tool takes for it."""
    run = work.runs[json.loads(call["arguments"])["command"]]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": run.output}, run.seconds


def without_ids(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items as two runs can be compared: ids are minted anew for each, so they go; everything else stays."""
    return [{key: value for key, value in item.items() if key not in _IDS} for item in items]
