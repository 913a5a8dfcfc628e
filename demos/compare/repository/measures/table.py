"""Many quantities in columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from measures.convert import convert
from measures.quantity import Quantity
from measures.render import render_number


@dataclass
class Column:
    """A heading with a unit; its quantities are shown in that unit."""

    heading: str
    unit: str
    values: list[Quantity] = field(default_factory=list)

    def add(self, quantity: Quantity) -> None:
        """Put one more at the end, converted. Raises UnknownUnit, DimensionError."""
        self.values.append(convert(quantity, self.unit))

    def cells(self, digits: int) -> list[str]:
        """The heading with its unit, then the numbers."""
        return [f"{self.heading} ({self.unit})", *(render_number(one.value, digits) for one in self.values)]

    def total(self) -> Quantity:
        """The sum of the column; zero for an empty one."""
        total = Quantity.of(0.0, self.unit)
        for value in self.values:
            total = total + value
        return total


def render_table(columns: Sequence[Column], digits: int = 4) -> str:
    """The columns side by side, numbers flush right; a short column is filled with blanks."""
    cells = [column.cells(digits) for column in columns]
    height = max(map(len, cells), default=0)
    widths = [max(map(len, column)) for column in cells]
    rows = []
    for row in range(height):
        line = (column[row] if row < len(column) else "" for column in cells)
        rows.append("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return "\n".join(rows)


def read_column(heading: str, unit: str, quantities: Iterable[Quantity]) -> Column:
    """A column with these in it."""
    column = Column(heading, unit)
    for quantity in quantities:
        column.add(quantity)
    return column
