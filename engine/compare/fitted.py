"""Tables for a terminal that is too narrow for them: cut between columns, the first one again beside each part.

A cell has lines where it is too long; no word, and no figure with its spread or unit, is broken or cut short.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from engine.compare.tables import Grid

_FRAME: Final = 3  # columns of the terminal around each of the table's: a line and two blanks
_JOINT: Final = "\u00a0"  # what textwrap takes for a letter
_JOINED: Final = (" ± ", " %", " / ", " → ")


def fitted(grid: Grid, width: int) -> list[Grid]:
    """The table in as many parts as it takes to be legible in so many columns."""
    columns = [[_join(row[number]) for row in (grid.head, *grid.rows)] for number in range(len(grid.head))]
    least = [_least(column) for column in columns]
    least[0] = max(least[0], max(map(len, columns[0])) // 2 + 2)  # the longest name takes two lines
    parts = list(_parts(least, width))
    return [
        _part(f"{grid.title} ({number} of {len(parts)})" if len(parts) > 1 else grid.title, columns, least, part, width)
        for number, part in enumerate(parts, 1)
    ]


def _join(cell: str) -> str:
    for joined in _JOINED:
        cell = cell.replace(joined, joined.replace(" ", _JOINT))
    return cell


def _least(cells: Sequence[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split(" "))


def _parts(least: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns of each part; one that is too wide for any has a part of its own."""
    part, taken = [0], 1 + least[0] + _FRAME
    for column, needed in enumerate(least[1:], 1):
        if len(part) > 1 and taken + needed + _FRAME > width:
            yield part
            part, taken = [0], 1 + least[0] + _FRAME
        part.append(column)
        taken += needed + _FRAME
    yield part


def _part(title: str, columns: Sequence[list[str]], least: Sequence[int], part: Sequence[int], width: int) -> Grid:
    room = width - 1 - sum(least[number] + _FRAME for number in part)
    wrapped = []
    for number in part:
        more = max(0, min(room, max(map(len, columns[number])) - least[number]))
        room -= more
        wrapped.append([_wrap(cell, least[number] + more) for cell in columns[number]])
    head, *rows = zip(*wrapped, strict=True)
    return Grid(title, head, rows)


def _wrap(cell: str, width: int) -> str:
    lines = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_JOINT, " ")
