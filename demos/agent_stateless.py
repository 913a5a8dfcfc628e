"""An agent, stateless: every request carries the whole history, and the server forgets it after each answer.

One of four that differ in nothing but their lifecycle: agent_stateless, agent_chain, agent_append, agent_inject.
python demos/agent_stateless.py --url http://127.0.0.1:8765
"""

import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from common import FAILURES, PROMPT, TOOLS, answer, check, read_url

Json = dict[str, Any]


def ask(connection: HTTPConnection, **fields: Any) -> Iterator[Json]:
    """The events of one request."""
    body = json.dumps({"tools": TOOLS, "stream": True, "store": False, **fields})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            if event["type"] in FAILURES:
                sys.exit(f"the run did not complete: {line.decode()}")
            yield event


def main() -> None:
    """Ask, run what the model calls, put call and output behind the history, ask with all of it."""
    connection = HTTPConnection(urlsplit(read_url()).netloc)
    outputs: list[str] = []
    text = ""
    history: list[Json] = [{"role": "user", "content": PROMPT}]
    while True:
        made, answers = list[Json](), list[Json]()
        for event in ask(connection, input=history):
            if event["type"] == "response.output_item.done":
                made.append(event["item"])
                if event["item"]["type"] == "function_call":
                    answers.append(answer(event["item"]))
            elif event["type"] == "response.output_text.done":
                text = event["text"]
        if not answers:
            break
        outputs += [item["output"] for item in answers]
        history += [*made, *answers]
    check(text, outputs)


if __name__ == "__main__":
    main()
