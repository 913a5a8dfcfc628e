"""An agent run with the official openai package: its WebSocket connection, and `response.append` sent by hand.

pip install -e '.[clients]'; python demos/openai_append.py --url http://127.0.0.1:8765
"""

import os
import sys

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url

need("openai", "websockets")
from openai import OpenAI  # noqa: E402 - only once it is known to be there


def main() -> None:
    """One run: every call is answered as soon as it is known, while the model may still be writing."""
    client = OpenAI(base_url=read_url() + "/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    outputs: list[str] = []
    text = ""
    with client.responses.connect(extra_query={"lifecycle": "append"}) as connection:
        connection.response.create(input=PROMPT, tools=TOOLS)
        for event in connection:
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                item = answer(event.item.to_dict())
                outputs.append(item["output"])
                connection.send({"type": "response.append", "input": [item]})
            elif event.type == "response.output_text.done":
                text = event.text
            elif event.type == "response.completed":
                break
            elif event.type in FAILURES:
                sys.exit(f"{event.type}: {event.to_json()}")
    check(text, outputs)


if __name__ == "__main__":
    main()
