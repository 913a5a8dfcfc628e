"""A number with a unit, and what can be done with two of them."""

from dataclasses import dataclass

from measures.units import Unit, find_unit


class DimensionError(ValueError):
    """Two quantities of different dimensions were put together."""


@dataclass(frozen=True)
class Quantity:
    """A value in a unit. Equal only to the same value in the same unit; compare with `is_close` otherwise."""

    value: float
    unit: Unit

    @classmethod
    def of(cls, value: float, name: str) -> "Quantity":
        """A value in the unit of this name. Raises UnknownUnit."""
        return cls(value, find_unit(name))

    @property
    def base_value(self) -> float:
        """The value in the base unit of the dimension."""
        return self.value * self.unit.factor + self.unit.offset

    def __add__(self, other: "Quantity") -> "Quantity":
        """The sum, in the unit of the left one. Raises DimensionError."""
        self._check(other)
        return Quantity(self.value + other.value * other.unit.factor / self.unit.factor, self.unit)

    def __sub__(self, other: "Quantity") -> "Quantity":
        """The difference, in the unit of the left one. Raises DimensionError."""
        return self + Quantity(-other.value, other.unit)

    def __mul__(self, factor: float) -> "Quantity":
        """So many times as much."""
        return Quantity(self.value * factor, self.unit)

    def is_close(self, other: "Quantity", tolerance: float = 1e-9) -> bool:
        """Whether both mean the same amount, up to a share of it. Raises DimensionError."""
        self._check(other)
        difference = abs(self.base_value - other.base_value)
        return difference <= tolerance * max(abs(self.base_value), abs(other.base_value), 1e-12)

    def _check(self, other: "Quantity") -> None:
        if self.unit.dimension != other.unit.dimension:
            raise DimensionError(f"{self.unit.dimension} and {other.unit.dimension} do not go together")
