"""An agent run with nothing but asyncio and websockets: the whole protocol in one loop.

pip install -e '.[clients]'; python demos/plain_asyncio.py --url http://127.0.0.1:8765
"""

import asyncio
import json
import sys

from common import FAILURES, PROMPT, TOOLS, answer, check, need, read_url, socket_url

need("websockets")
from websockets.asyncio.client import connect  # noqa: E402 - only once it is known to be there


async def main() -> None:
    """One run: collect the calls of a step, answer them together when `response.done` says it waits for them."""
    outputs: list[str] = []
    calls = []
    text = ""
    async with connect(socket_url(read_url())) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": PROMPT, "tools": TOOLS}))
        async for frame in socket:
            event = json.loads(frame)
            match event["type"]:
                case "response.output_item.done" if event["item"]["type"] == "function_call":
                    calls.append(event["item"])
                case "response.output_text.done":
                    text = event["text"]
                case "response.done":
                    items = await asyncio.gather(*(asyncio.to_thread(answer, call) for call in calls))
                    outputs += [item["output"] for item in items]
                    calls.clear()
                    await socket.send(json.dumps({"type": "response.append", "input": items}))
                case "response.completed":
                    break
                case kind if kind in FAILURES:
                    sys.exit(frame)
    check(text, outputs)


if __name__ == "__main__":
    asyncio.run(main())
