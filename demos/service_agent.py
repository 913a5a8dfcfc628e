"""An agent that works with a shop's MCP server, within one response, and pays nothing back unless you approve.

pip install -e '.[clients,mcp]'
python demos/shop_server.py --port 9000
longloop serve --set 'mcp_hosts=["127.0.0.1"]' --set 'mcp_networks=["127.0.0.0/8"]'
python demos/service_agent.py --url http://127.0.0.1:8765 --shop http://127.0.0.1:9000/mcp

The server connects to the shop; this client sees its calls, and is asked about those that change something. Without a
model that is up to it: `--backend script:demos/service.yaml`.
"""

import argparse
import os
import sys

from common import DEFAULT_URL, FAILURES, need, reachable

need("openai", "websockets")
from openai import OpenAI  # noqa: E402 - only once it is known to be there

PROMPT = "My order 4711 came broken. Look it up, and pay it back."


def read_options() -> argparse.Namespace:
    """`--url`, `--shop`, and an answer for whom nobody is there to ask."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default=DEFAULT_URL, help="where `longloop serve` listens")
    parser.add_argument("--shop", default="http://127.0.0.1:9000/mcp", help="the MCP server's URL")
    parser.add_argument("--approve", choices=("ask", "yes", "no"), default="ask", help="whether calls are approved")
    return parser.parse_args()


def approves(item: dict, choice: str) -> bool:
    """Whether this call may be made."""
    print(f"\n? {item['server_label']}.{item['name']}({item['arguments']})")
    if choice == "ask" and not sys.stdin.isatty():
        print("  nobody is here to ask, so it is not made; --approve yes approves such calls")
    elif choice == "ask":
        return input("  approve? [y/N] ").strip().lower() == "y"
    elif choice == "no":
        print("  not made, because of --approve no")
    return choice == "yes"


def show(item: dict) -> None:
    """A finished item of the shop's."""
    if item["type"] == "mcp_list_tools":
        print(f"· tools of {item['server_label']}: {', '.join(t['name'] for t in item['tools']) or item.get('error')}")
    elif item["type"] == "mcp_call":
        said = item.get("output") or item["error"]["content"][0]["text"]
        print(f"\n· {item['name']}({item['arguments']}): {said}")


def main() -> None:
    """One run; its approvals are appended while it is open."""
    options = read_options()
    client = OpenAI(base_url=reachable(options.url) + "/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    shop = {"type": "mcp", "server_label": "shop", "server_url": options.shop}
    shop["require_approval"] = {"never": {"read_only": True}}
    with client.responses.connect(extra_query={"lifecycle": "append"}) as connection:
        connection.response.create(input=PROMPT, tools=[shop])
        for event in connection:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
            elif event.type == "response.output_item.done":
                item = event.item.to_dict()
                show(item)
                if item["type"] == "mcp_approval_request":
                    answer = {"type": "mcp_approval_response", "approval_request_id": item["id"]}
                    answer["approve"] = approves(item, options.approve)
                    connection.send({"type": "response.append", "input": [answer]})
            elif event.type == "response.completed":
                print()
                break
            elif event.type in FAILURES:
                sys.exit(f"{event.type}: {event.to_json()}")


if __name__ == "__main__":
    main()
