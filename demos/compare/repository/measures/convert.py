"""From one unit to another."""

from measures.quantity import DimensionError, Quantity
from measures.units import Unit, base_unit, find_unit, units_of


def convert(quantity: Quantity, name: str) -> Quantity:
    """The same amount in the unit of this name. Raises UnknownUnit, DimensionError."""
    unit = find_unit(name)
    if unit.dimension != quantity.unit.dimension:
        raise DimensionError(f"{quantity.unit.name} is a {quantity.unit.dimension}, {name} a {unit.dimension}")
    return Quantity(_from_base(quantity.base_value, unit), unit)


def _from_base(value: float, unit: Unit) -> float:
    return value / unit.factor - unit.offset


def to_base(quantity: Quantity) -> Quantity:
    """The same amount in the base unit of its dimension."""
    return Quantity(quantity.base_value, base_unit(quantity.unit.dimension))


def to_readable(quantity: Quantity) -> Quantity:
    """The same amount in the largest unit in which the value is at least 1; in the smallest when there is none."""
    candidates = units_of(quantity.unit.dimension)
    chosen = candidates[0]
    for unit in candidates:
        if abs(_from_base(quantity.base_value, unit)) >= 1:
            chosen = unit
    return Quantity(_from_base(quantity.base_value, chosen), chosen)


def convert_all(quantities: list[Quantity], name: str) -> list[Quantity]:
    """Each in the unit of this name. Raises as `convert` does, at the first that cannot be converted."""
    return [convert(quantity, name) for quantity in quantities]
