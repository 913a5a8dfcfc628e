"""An MCP server with two tools of a shop: one that looks orders up, one that pays back. For `service_agent.py`.

pip install -e '.[mcp]'; python demos/shop_server.py --port 9000
"""

import argparse
import hashlib
import os
import socket

import mcp_types
import uvicorn
from mcp.server.mcpserver import MCPServer

ORDERS = {4711: "a teapot, 39.00 EUR, delivered broken", 4712: "two cups, 18.00 EUR, on their way"}
shop = MCPServer("shop")


@shop.tool(annotations=mcp_types.ToolAnnotations(read_only_hint=True))
async def find_order(number: int) -> str:
    """Look an order up."""
    return ORDERS.get(number, "no such order")


@shop.tool()
async def refund(number: int, reason: str) -> str:
    """Pay an order back."""
    receipt = hashlib.sha256(os.urandom(16)).hexdigest()[:8].upper()
    print(f"paid back: order {number} ({reason}), receipt {receipt}", flush=True)
    return f"order {number} is paid back, receipt {receipt}"


def main() -> None:
    """Serve on loopback; the first line on stdout is the URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9000, help="0 for a free one")
    listener = socket.create_server(("127.0.0.1", parser.parse_args().port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(shop.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
