"""An agent run with the official openai package's beta: one response that waits, without a frame, for what is injected.

pip install -e '.[clients]'; python demos/openai_inject.py --url http://127.0.0.1:8765
"""

import os
import sys

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url

need("openai", "websockets")
from openai import OpenAI  # noqa: E402 - only once it is known to be there

BETA = {"OpenAI-Beta": "responses_multi_agent=v1"}


def main() -> None:
    """One run: every call is answered as soon as it is known."""
    client = OpenAI(base_url=read_url() + "/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    outputs: list[str] = []
    run = text = ""
    with client.beta.responses.connect(extra_headers=BETA) as connection:
        connection.response.create(input=PROMPT, tools=TOOLS, multi_agent={"enabled": True})
        for event in connection:
            if event.type == "response.created":
                run = event.response.id
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                item = answer(event.item.to_dict())
                outputs.append(item["output"])
                connection.response.inject(response_id=run, input=[item])
            elif event.type == "response.output_text.done":
                text = event.text
            elif event.type == "response.completed":
                break
            elif event.type in (*FAILURES, "response.inject.failed"):
                sys.exit(f"{event.type}: {event.to_json()}")
    check(text, outputs)


if __name__ == "__main__":
    main()
