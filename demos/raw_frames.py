"""An agent run as it is on the wire: every frame of both directions, as it was sent.

pip install -e '.[clients]'; python demos/raw_frames.py --url http://127.0.0.1:8765
"""

import json
import sys
from typing import Any

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url, socket_url

need("websockets")
from websockets.sync.client import ClientConnection, connect  # noqa: E402 - only once it is known to be there


def send(socket: ClientConnection, frame: dict[str, Any]) -> None:
    """Send and print a frame."""
    text = json.dumps(frame)
    print(">", text)
    socket.send(text)


def main() -> None:
    """One run: `>` went to the server, `<` came from it."""
    outputs: list[str] = []
    text = ""
    with connect(socket_url(read_url())) as socket:
        send(socket, {"type": "response.create", "input": PROMPT, "tools": TOOLS})
        for frame in socket:
            print("<", frame)
            event = json.loads(frame)
            if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
                item = answer(event["item"])
                outputs.append(item["output"])
                send(socket, {"type": "response.append", "input": [item]})
            elif event["type"] == "response.output_text.done":
                text = event["text"]
            elif event["type"] == "response.completed":
                break
            elif event["type"] in FAILURES:
                sys.exit("the run did not complete")
    check(text, outputs)


if __name__ == "__main__":
    main()
