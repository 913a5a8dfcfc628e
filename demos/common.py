"""What the demos share: the prompt, the tools as definitions, a call's answer, and the check of the result."""

import argparse
import json
import re
import socket
import sys
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

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
DEFAULT_URL = "http://127.0.0.1:8765"
FAILURES = ("response.failed", "response.incomplete", "error")


def need(*packages: str) -> None:
    """Exit with a sentence unless these are installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        sys.exit(f"this demo needs {' and '.join(missing)}: pip install -e '.[clients]' (jsonschema: '.[dev]')")


def read_options(**choices: tuple[str, ...]) -> argparse.Namespace:
    """`--url`, and a flag for each keyword: one of its values, of which the first is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default=DEFAULT_URL, help="where `longloop serve` listens")
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    return parser.parse_args()


def read_url() -> str:
    """The server's URL from `--url`. Exits with a sentence when nothing listens there."""
    return reachable(read_options().url)


def reachable(written: str) -> str:
    """The URL without a path. Exits with a sentence when nothing listens there."""
    url = base_url(written)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=10).close()
    except (OSError, ValueError):
        sys.exit(f"no server at {url}: start `longloop serve`")
    return url


def base_url(url: str) -> str:
    """`http://host:port` for what people write: ws or http or neither, with or without /v1 or /v1/responses."""
    url = url.partition("?")[0].rstrip("/").removesuffix("/responses").removesuffix("/v1")
    return re.sub(r"^ws", "http", url) if "://" in url else f"http://{url}"


def socket_url(url: str, lifecycle: str = "append") -> str:
    """The WebSocket endpoint for runs of a lifecycle; by default for those that wait for `response.append`."""
    return url.replace("http", "ws", 1) + f"/v1/responses?lifecycle={lifecycle}"


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
