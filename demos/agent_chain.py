"""An agent, as shipped: one socket, a response for every turn, each naming the one before and bringing what is new.

One of four that differ in nothing but their lifecycle: agent_stateless, agent_chain, agent_append, agent_inject.
pip install -e '.[clients]'; python demos/agent_chain.py --url http://127.0.0.1:8765
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url, socket_url

need("websockets")
from websockets.sync.client import ClientConnection, connect  # noqa: E402 - only once it is known to be there

Json = dict[str, Any]


def ask(socket: ClientConnection, **fields: Any) -> Iterator[Json]:
    """The events of one response."""
    socket.send(json.dumps({"type": "response.create", "tools": TOOLS, "store": False, **fields}))
    for frame in socket:
        event = json.loads(frame)
        if event["type"] in FAILURES:
            sys.exit(f"the run did not complete: {frame!r}")
        yield event
        if event["type"] == "response.completed":
            return


def main() -> None:
    """Ask, run what the model calls, ask with the outputs and the id of the response that called."""
    outputs: list[str] = []
    text = ""
    with connect(socket_url(read_url(), "chain")) as socket:
        new: Json = {"input": PROMPT}
        while True:
            answers: list[Json] = []
            for event in ask(socket, **new):
                if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
                    answers.append(answer(event["item"]))
                elif event["type"] == "response.output_text.done":
                    text = event["text"]
                elif event["type"] == "response.completed":
                    new = {"input": answers, "previous_response_id": event["response"]["id"]}
            if not answers:
                break
            outputs += [item["output"] for item in answers]
    check(text, outputs)


if __name__ == "__main__":
    main()
