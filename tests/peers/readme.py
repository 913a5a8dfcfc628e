"""The README's snippets, to be run as they are written."""

import re
from typing import Final

from tests.peers.npm import ROOT

README: Final = (ROOT / "README.md").read_text("utf-8")
_ADDRESS: Final = "127.0.0.1:8765"  # where the README's server listens


def section(title: str) -> str:
    """What stands below a heading of the second or third level, up to the next."""
    found = re.search(rf"\n###? {re.escape(title)}\n(.*?)(?=\n###? |\Z)", README, re.DOTALL)
    assert found, title
    return found[1]


def blocks(title: str, language: str) -> list[str]:
    """The snippets of a language in a section."""
    return re.findall(rf"```{language}\n(.*?)```", section(title), re.DOTALL)


def block(title: str, language: str) -> str:
    """The first of them."""
    return blocks(title, language)[0]


def at(snippet: str, port: int) -> str:
    """A snippet for a server that listens elsewhere."""
    assert _ADDRESS in snippet, snippet
    return snippet.replace(_ADDRESS, f"127.0.0.1:{port}")
