"""A research agent: it searches files and the web on the server, and reads this machine's clock, all at the same time.

longloop index demos/research
python demos/search_provider.py        # or a SearXNG of yours; prints the web_search_url
longloop serve --backend script:demos/research.yaml --set file_search=true --set 'web_search_url=…'
python demos/research_agent.py
"""

import sys
from datetime import datetime
from typing import Any

import trio
from common import read_url

from engine.client import RunFailed, open_run

PROMPT = (
    "May the ferry sail at the March spring tide? Use the files, the web and the time, and say where you have it from."
)
FILES = {"type": "file_search", "vector_store_ids": ["research"], "max_num_results": 2}
WEB = {"type": "web_search", "search_context_size": "low"}
SHOWN = ["file_search_call.results", "web_search_call.action.sources"]


def show(item: dict[str, Any]) -> None:
    """A hosted call, as its item tells of it."""
    match item["type"]:
        case "file_search_call":
            found = ", ".join(f"{one['filename']} ({one['score']:.2f})" for one in item["results"] or [])
            print(f"searched files for {item['queries']}: {found}")
        case "web_search_call":
            action = item["action"]
            print(f"searched the web for {action.get('query')!r}: {[one['url'] for one in action.get('sources', [])]}")


async def main() -> None:
    """One run. The server runs its two tools while this program runs its own."""
    times: list[str] = []

    def read_clock() -> str:
        """Read the clock of the user's machine."""
        times.append(f"{datetime.now():%H:%M:%S.%f}")
        print(f"read the clock: {times[-1]}")
        return times[-1]

    try:
        async with open_run(read_url(), input=PROMPT, tools=[read_clock, FILES, WEB], include=SHOWN) as run:
            async for event in run:
                if event["type"] == "response.output_item.done":
                    show(event["item"])
            result = await run.result()
    except RunFailed as error:
        sys.exit(f"the run did not complete: {error}")
    print(result.text)
    kinds = {item["type"] for item in result.output if item.get("status") == "completed"}
    if missing := {"file_search_call", "web_search_call", "function_call"} - kinds:
        sys.exit(f"there was no {' and no '.join(sorted(missing))}")
    if times[0] not in result.text:
        sys.exit("the answer does not quote the clock")


if __name__ == "__main__":
    trio.run(main)
