"""Between units."""

import pytest
from measures.convert import convert, convert_all, to_base, to_readable
from measures.quantity import DimensionError, Quantity


@pytest.mark.parametrize(
    ("value", "unit", "expected", "target"),
    [
        (1, "mi", 1.609344, "km"),
        (16, "oz", 1, "lb"),
        (90, "min", 1.5, "h"),
        (1, "MiB", 1048.576, "kB"),
        (2, "pt", 4, "cup"),
    ],
)
def test_amounts_stay_the_same(value, unit, expected, target):
    assert convert(Quantity.of(value, unit), target).value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "unit", "expected", "target"),
    [
        (0, "degC", 273.15, "K"),
        (25, "degC", 77, "degF"),
        (32, "degF", 0, "degC"),
        (-40, "degF", -40, "degC"),
        (0, "K", -459.67, "degF"),
    ],
)
def test_temperatures_have_offsets(value, unit, expected, target):
    assert convert(Quantity.of(value, unit), target).value == pytest.approx(expected, abs=1e-6)


def test_a_length_is_no_mass():
    with pytest.raises(DimensionError, match="km is a length, kg a mass"):
        convert(Quantity.of(1, "km"), "kg")


@pytest.mark.parametrize(("value", "unit", "name"), [(5000, "m", "nmi"), (3, "in", "in"), (90, "s", "min")])
def test_a_readable_unit_is_the_largest_with_a_value_of_one(value, unit, name):
    assert to_readable(Quantity.of(value, unit)).unit.name == name


def test_the_base_unit():
    assert to_base(Quantity.of(2, "km")).value == 2000


def test_many_at_once():
    quantities = [Quantity.of(1, "km"), Quantity.of(1, "mi")]
    assert [round(one.value) for one in convert_all(quantities, "m")] == [1000, 1609]
