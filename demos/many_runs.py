"""How well the served model does the quickstart's run: `python demos/many_runs.py --url ws://… --runs 20`.

Every run asks for two tools whose outputs nobody can guess. What must hold is checked (exit 1 when it does not): each
call fits its tool's schema, and the token log shows that each output went into the context. The latter needs a server
with the default model's tokenizer, and is skipped when no token events come. What depends on how good the model is, is
reported: in how many runs a tool was called at all, and in how many the answer quotes an output.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tools
import trio
from common import DEFAULT_URL, need, reachable

from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.backends.vocabulary import Vocabulary
from engine.client import open_run
from engine.toolschema import FunctionTool

need("jsonschema")
import jsonschema  # noqa: E402 - only once it is known to be there

PROMPT = "Draw a lucky number up to 500 and measure the temperature in Oslo."
TOOLS = [FunctionTool(tools.draw_lucky_number), FunctionTool(tools.get_temperature)]


@dataclass
class Observed:
    """One run: its calls, their outputs, what went into the context, what came out."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    text: str = ""


async def observe(url: str) -> Observed:
    """Do one run and note everything."""
    seen = Observed()
    options: dict[str, Any] = {"include": ["response.tokens"], "max_output_tokens": 400}
    note = seen.outputs.append
    async with open_run(
        url, input=PROMPT, tools=TOOLS, on_tool_output=lambda outcome: note(outcome.output), **options
    ) as run:
        async for event in run:
            if event["type"] == "response.tokens":
                seen.given += [i for span in event["spans"] if not span["sampled"] for i in span["ids"]]
            elif event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
                seen.calls.append(event["item"])
        result = await run.result()
    seen.text = result.text
    return seen


def faults(seen: Observed, vocabulary: Vocabulary | None) -> list[str]:
    """What must hold and does not; without a vocabulary the token log is not looked at."""
    schemas = {tool.name: tool.definition["parameters"] for tool in TOOLS}
    found = []
    for call in seen.calls:
        try:
            jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
        except (ValueError, jsonschema.ValidationError) as error:
            found.append(f"{call['name']}({call['arguments']}) does not fit its schema: {error}")
    if vocabulary is None:
        return found
    context = b"".join(map(vocabulary.bytes_of, seen.given)).decode(errors="replace")
    found += [f"output {output!r} is not in the token log" for output in seen.outputs if output not in context]
    return found


async def main(url: str, num_runs: int) -> int:
    vocabulary: Vocabulary | None = None
    called, quoted, all_faults = 0, 0, []
    for number in range(num_runs):
        seen = await observe(url)
        if seen.given and vocabulary is None:
            folder = await trio.to_thread.run_sync(resolve, DEFAULT_MODEL, lambda stage, fraction: None)
            vocabulary = Vocabulary.load(folder)
        all_faults += faults(seen, vocabulary)
        called += bool(seen.calls)
        quotes = [output for output in seen.outputs if output.split()[0] in seen.text]
        quoted += bool(quotes)
        print(f"run {number + 1}: {len(seen.calls)} calls, outputs {seen.outputs}, quoted {quotes}", flush=True)
    if vocabulary is None:
        print("no token events came, so the token log was not checked: the server has no tokenizer")
    print(f"{num_runs} runs: a tool was called in {called}, the answer quotes an output in {quoted}")
    print(json.dumps({"runs": num_runs, "called": called, "quoted": quoted, "faults": all_faults}))
    return 1 if all_faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=DEFAULT_URL, help="where `longloop serve` listens")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    sys.exit(trio.run(partial(main, reachable(options.url), options.runs)))
