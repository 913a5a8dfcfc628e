"""From quantities to text."""

from measures.convert import to_readable
from measures.quantity import Quantity

DEGREES = {"degC": "°C", "degF": "°F"}


def render(quantity: Quantity, digits: int = 4) -> str:
    """`3.5 km`: the value with so many significant digits, a space, the unit."""
    return f"{render_number(quantity.value, digits)} {unit_label(quantity)}"


def render_readable(quantity: Quantity, digits: int = 4) -> str:
    """The same in the unit that makes the number easy to read."""
    return render(to_readable(quantity), digits)


def render_number(value: float, digits: int = 4) -> str:
    """The number with so many significant digits; no trailing zeros, no exponent between 1e-4 and 1e6."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    if 1e-4 <= abs(value) < 1e6:
        return f"{float(text):.0f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}"


def unit_label(quantity: Quantity) -> str:
    """The unit's name as people write it."""
    return DEGREES.get(quantity.unit.name, quantity.unit.name)
