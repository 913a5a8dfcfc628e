"""An agent run with the official openai package over one socket: every turn is a create that goes on from the last.

pip install -e '.[clients]'; python demos/openai_chain.py --url http://127.0.0.1:8765
"""

import os
import sys
from typing import Any

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url

need("openai", "websockets")
from openai import OpenAI  # noqa: E402 - only once it is known to be there


def finish(connection: Any) -> Any:
    """The response that is being made, once it is complete."""
    for event in connection:
        if event.type == "response.completed":
            return event.response
        if event.type in FAILURES:
            sys.exit(f"{event.type}: {event.to_json()}")
    sys.exit("the connection ended")


def main() -> None:
    """A warm-up, while the user still types; then turns, each with nothing but what is new."""
    client = OpenAI(base_url=read_url() + "/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    outputs: list[str] = []
    with client.responses.connect() as connection:
        connection.response.create(input=[], tools=TOOLS, store=False, generate=False)
        response = finish(connection)
        new: list[Any] = [{"role": "user", "content": PROMPT}]
        while new:
            connection.response.create(input=new, tools=TOOLS, store=False, previous_response_id=response.id)
            response = finish(connection)
            new = [answer(item.to_dict()) for item in response.output if item.type == "function_call"]
            outputs += [item["output"] for item in new]
    check(response.output_text, outputs)


if __name__ == "__main__":
    main()
