"""Texts and the quantities they mean."""

import pytest
from measures.parse import ParseError, parse
from measures.quantity import DimensionError, Quantity


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("3.5 km", 3.5, "km"),
        ("3.5km", 3.5, "km"),
        ("5 ft 11 in", 5 + 11 / 12, "ft"),
        ("3 mi + 400 m", 3 + 400 / 1609.344, "mi"),
        ("2 * 3 kg", 6, "kg"),
        ("1 h - 15 min", 0.75, "h"),
        ("1e3 g", 1000, "g"),
        ("2 * 1 ft 6 in + 1 ft", 4, "ft"),
    ],
)
def test_what_a_text_means(text, value, unit):
    assert parse(text).is_close(Quantity.of(value, unit))
    assert parse(text).unit.name == unit


@pytest.mark.parametrize("text", ["", "km", "3", "3 km +", "3 km * 2", "3 % km", "+ 3 km"])
def test_what_is_no_quantity(text):
    with pytest.raises(ParseError):
        parse(text)


def test_dimensions_do_not_mix():
    with pytest.raises(DimensionError, match="length and mass"):
        parse("3 km + 2 kg")
