"""An agent, in the public beta's words: as agent_append, but outputs go to a response that is named, and are accepted.

One of four that differ in nothing but their lifecycle: agent_stateless, agent_chain, agent_append, agent_inject.
pip install -e '.[clients]'; python demos/agent_inject.py --url http://127.0.0.1:8765
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url, socket_url

need("websockets")
from websockets.sync.client import ClientConnection, connect  # noqa: E402 - only once it is known to be there

Json = dict[str, Any]


def events(socket: ClientConnection) -> Iterator[Json]:
    """The events of the run, to its end."""
    for frame in socket:
        event = json.loads(frame)
        if event["type"] in (*FAILURES, "response.inject.failed"):
            sys.exit(f"the run did not complete: {frame!r}")
        yield event
        if event["type"] == "response.completed":
            return


def main() -> None:
    """Ask once; inject each call's output as soon as it is there. No frame says that the run waits."""
    outputs: list[str] = []
    text = run = ""
    with connect(socket_url(read_url(), "inject")) as socket:
        socket.send(json.dumps({"type": "response.create", "tools": TOOLS, "store": False, "input": PROMPT}))
        for event in events(socket):
            if event["type"] == "response.created":
                run = event["response"]["id"]
            elif event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
                item = answer(event["item"])
                outputs.append(item["output"])
                socket.send(json.dumps({"type": "response.inject", "response_id": run, "input": [item]}))
            elif event["type"] == "response.output_text.done":
                text = event["text"]
    check(text, outputs)


if __name__ == "__main__":
    main()
