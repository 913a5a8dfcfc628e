"""The report as one HTML page that needs nothing else: tables, plots, how it was measured, what others published."""

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from engine.compare.results import Header
from engine.compare.summary import PUBLISHED
from engine.compare.tables import Grid

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #111;
  background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: .85rem; width: 100% }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #ccc; text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; height: auto } figure { margin: 1.5rem 0 }
@media print { body { max-width: none; font-size: 11px } figure, table { break-inside: avoid } }
"""

METHOD: Final = (
    "One server; each design's client plays the same agent's run against it. What every design makes is compared item "
    "by item; one difference, and no figure is shown.",
    "Real: the instructions, the tools, the outputs of grep, cat and pytest, and everything the server does with them: "
    "parsing, validating, looking for 25 kinds of keys and a pattern, rendering, tokenising with the default model's "
    "tokenizer, recording. Scripted: the model. It says the same tokens at a set speed and has no prefill, as if its "
    "KV cache held every history, in every design. Nothing is inferred, but for the table on a real model.",
    "Tools were really run once before the first measurement; in the runs their outputs come back after the time that "
    "they took. “Without tools” leaves out the time in which nothing was waited for but tools.",
    "The network is a proxy on this machine: half a round trip each way, one more round trip for a connection to open, "
    "another for TLS 1.3, a limit on the bandwidth where it says so. TCP's slow start, loss and session resumption are "
    "not there. Designs over a WebSocket use one plain connection, opened within the measured time.",
    "Repetitions take turns through all designs. Shown are medians and the spread of the middle half; gains are medians"
    " of runs side by side, and one that is smaller than its spread is called none.",
)


def page(
    header: Header,
    title: str,
    grids: Sequence[Grid],
    plots: Sequence[tuple[Path, str]],
    against: Sequence[str],
) -> str:
    """The page. plots: files with what they show; against: where the prototype does not help."""
    return "\n".join(_parts(header, title, grids, plots, against)) + "\n"


def _parts(
    header: Header, title: str, grids: Sequence[Grid], plots: Sequence[tuple[Path, str]], against: Sequence[str]
) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>The designs side by side</title><style>{_STYLE}</style>"
    yield f"<h1>The designs side by side</h1><p><b>{escape(title)}.</b></p>"
    yield from map(_figure, plots)
    yield "<h2>Where the prototype does not help</h2>" + _list(against)
    yield from map(_table, grids)
    yield "<h2>Published by others</h2>" + _list([f"{value}: {what}" for value, what in PUBLISHED])
    yield "<h2>How it was measured</h2>" + _list(METHOD)
    yield f"<p>{escape(_machine(header.machine))}; {header.tokens_per_step} tokens a step.</p></html>"


def _figure(plot: tuple[Path, str]) -> str:
    file, claim = plot
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<figure><img alt="{escape(claim)}" src="data:image/png;base64,{data}"></figure>'


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in grid.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return f"<h2>{escape(grid.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _machine(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    return f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {packages}"
