"""Stands in for a search provider where there is none: answers every search as SearXNG would, with one result.

python demos/search_provider.py prints the `web_search_url` for `longloop serve --set`, and answers until Ctrl-C.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Provider(BaseHTTPRequestHandler):
    """One answer."""

    def do_GET(self) -> None:
        """A result that names what was asked for."""
        query = parse_qs(urlsplit(self.path).query).get("q", [""])[0]
        result = {
            "url": "https://www.example.org/tides",
            "title": f"About: {query}",
            "content": "Spring tides come with the new moon and the full moon.",
        }
        body = json.dumps({"query": query, "results": [result]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def main() -> None:
    """Answer on a free port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        print(f"http://127.0.0.1:{server.server_port}/search?format=json&q={{query}}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
