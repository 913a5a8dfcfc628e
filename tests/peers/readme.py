"""The README's snippets, to be run as they are written."""

from typing import Final

from tests.peers.npm import ROOT

README: Final = (ROOT / "README.md").read_text("utf-8")
_ADDRESS: Final = "127.0.0.1:8765"  # where the README's server listens


def section(title: str) -> str:
    """What stands below a heading of the third level."""
    _, found, rest = README.partition(f"\n### {title}\n")
    assert found, title
    return rest.split("\n## ")[0].split("\n### ")[0]


def block(title: str, language: str) -> str:
    """The first snippet of a language in a section."""
    return section(title).partition(f"```{language}\n")[2].partition("```")[0]


def at(snippet: str, port: int) -> str:
    """A snippet for a server that listens elsewhere."""
    assert _ADDRESS in snippet, snippet
    return snippet.replace(_ADDRESS, f"127.0.0.1:{port}")
