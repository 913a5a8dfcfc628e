"""An agent run with the official openai package over HTTP.

pip install -e '.[clients]'; python demos/openai_http.py --url http://127.0.0.1:8765 [--how streamed] [--history kept]
"""

import os
import sys
from typing import Any

from common import PROMPT, TOOLS, answer, check, need, reachable, read_options

need("openai")
from openai import OpenAI  # noqa: E402 - only once it is known to be there


def respond(client: OpenAI, is_streamed: bool, request: dict[str, Any]) -> Any:
    """The response to a request."""
    if not is_streamed:
        return client.responses.create(tools=TOOLS, **request)
    with client.responses.stream(tools=TOOLS, **request) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", file=sys.stderr)
        return stream.get_final_response()


def main() -> None:
    """Requests until one brings no calls: each sends everything again, or goes on from the last by its id."""
    options = read_options(how=("whole", "streamed"), history=("sent", "kept"))
    url = reachable(options.url)
    client = OpenAI(base_url=url + "/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    outputs: list[str] = []
    history: list[Any] = [{"role": "user", "content": PROMPT}]
    request: dict[str, Any] = {"model": client.models.list().data[0].id, "input": history}
    while True:
        response = respond(client, options.how == "streamed", request)
        answers = [answer(item.to_dict()) for item in response.output if item.type == "function_call"]
        if not answers:
            break
        outputs += [item["output"] for item in answers]
        if options.history == "kept":
            request |= {"input": answers, "previous_response_id": response.id}
        else:
            history += [*(item.to_dict() for item in response.output), *answers]
            request |= {"store": False}
    check(response.output_text, outputs)


if __name__ == "__main__":
    main()
