"""What the demos share: the prompt, the tools as definitions, a call's answer, and the check of the result."""

import argparse
import json
import sys
from typing import Any

import tools

PROMPT = "Draw a lucky number, measure the temperature in Oslo, and tell me both results exactly."
TOOLS = [
    {
        "type": "function",
        "name": "draw_lucky_number",
        "description": "Draw a lucky number.",
        "parameters": {"type": "object", "properties": {"maximum": {"type": "integer"}}},
    },
    {
        "type": "function",
        "name": "get_temperature",
        "description": "Measure the temperature in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
]
FAILURES = ("response.failed", "response.incomplete", "error")


def read_url() -> str:
    """The server's URL from `--url`, without a path."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8765", help="where `longloop serve` listens")
    url: str = parser.parse_args().url
    return url.rstrip("/").removesuffix("/v1/responses")


def socket_url(url: str) -> str:
    """The WebSocket endpoint for runs that wait for `response.append`."""
    return url.replace("http", "ws", 1) + "/v1/responses?lifecycle=append"


def answer(call: dict[str, Any]) -> dict[str, Any]:
    """Run the tool a `function_call` item names; its output as an item for `response.append`."""
    function = {"draw_lucky_number": tools.draw_lucky_number, "get_temperature": tools.get_temperature}[call["name"]]
    output = str(function(**json.loads(call["arguments"] or "{}")))
    print(f"{call['name']}({call['arguments']}) = {output}", file=sys.stderr)
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def check(text: str, outputs: list[str]) -> None:
    """Exit with an error unless tools ran and the final text quotes what they returned in this very run."""
    print(text)
    missing = [output for output in outputs if output.split()[0] not in text]
    if not outputs or missing:
        sys.exit(f"the answer does not quote {missing or 'any output'}")
