"""The table of units, and how a name that may carry a prefix is looked up."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unit:
    """A unit of a dimension: a value times `factor`, plus `offset`, is the value in the dimension's base unit."""

    name: str
    dimension: str
    factor: float
    offset: float = 0.0
    takes_prefix: bool = False


class UnknownUnit(ValueError):
    """There is no unit of this name."""


BASE_UNITS = {
    "length": "m",
    "mass": "g",
    "time": "s",
    "temperature": "K",
    "volume": "l",
    "data": "B",
}

PREFIXES = {
    "G": 1e9,
    "M": 1e6,
    "k": 1e3,
    "d": 1e-1,
    "c": 1e-2,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
}

_TABLE = (
    Unit("m", "length", 1.0, takes_prefix=True),
    Unit("in", "length", 0.0254),
    Unit("ft", "length", 0.3048),
    Unit("yd", "length", 0.9144),
    Unit("mi", "length", 1609.344),
    Unit("nmi", "length", 1852.0),
    Unit("g", "mass", 1.0, takes_prefix=True),
    Unit("t", "mass", 1e6),
    Unit("oz", "mass", 28.349523125),
    Unit("lb", "mass", 453.59237),
    Unit("st", "mass", 6350.29318),
    Unit("s", "time", 1.0, takes_prefix=True),
    Unit("min", "time", 60.0),
    Unit("h", "time", 3600.0),
    Unit("d", "time", 86400.0),
    Unit("wk", "time", 604800.0),
    Unit("K", "temperature", 1.0),
    Unit("degC", "temperature", 1.0, 273.15),
    Unit("degF", "temperature", 5 / 9, 459.67 * 5 / 9),
    Unit("l", "volume", 1.0, takes_prefix=True),
    Unit("gal", "volume", 3.785411784),
    Unit("pt", "volume", 0.473176473),
    Unit("cup", "volume", 0.2365882365),
    Unit("B", "data", 1.0, takes_prefix=True),
    Unit("bit", "data", 0.125, takes_prefix=True),
    Unit("KiB", "data", 1024.0),
    Unit("MiB", "data", 1048576.0),
)

UNITS = {unit.name: unit for unit in _TABLE}


def find_unit(name: str) -> Unit:
    """The unit of this name, with or without a prefix. Raises UnknownUnit.

    A whole name wins over a prefix: `min` is a minute and no milli-inch, `ft` is a foot.
    """
    if unit := UNITS.get(name):
        return unit
    prefix, rest = name[:1], name[1:]
    unit = UNITS.get(rest)
    if unit is None or prefix not in PREFIXES or not unit.takes_prefix:
        raise UnknownUnit(f"no unit is called {name!r}")
    return replace(unit, name=name, factor=unit.factor * PREFIXES[prefix], takes_prefix=False)


def base_unit(dimension: str) -> Unit:
    """The unit that the others of a dimension are measured in. Raises KeyError."""
    return UNITS[BASE_UNITS[dimension]]


def units_of(dimension: str) -> list[Unit]:
    """All units of a dimension without prefixes, the smallest first."""
    return sorted((unit for unit in _TABLE if unit.dimension == dimension), key=lambda unit: unit.factor)
