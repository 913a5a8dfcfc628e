"""The table, and prefixes."""

import pytest
from measures.units import BASE_UNITS, UNITS, UnknownUnit, base_unit, find_unit, units_of


def test_every_dimension_has_a_base_unit_of_factor_one():
    for dimension in {unit.dimension for unit in UNITS.values()}:
        assert base_unit(dimension).factor == 1.0
        assert base_unit(dimension).name == BASE_UNITS[dimension]


@pytest.mark.parametrize(("name", "factor"), [("km", 1e3), ("cm", 1e-2), ("ug", 1e-6), ("ml", 1e-3), ("Mbit", 125e3)])
def test_a_prefix_multiplies(name, factor):
    assert find_unit(name).factor == pytest.approx(factor)


@pytest.mark.parametrize(("name", "dimension"), [("min", "time"), ("ft", "length"), ("d", "time"), ("pt", "volume")])
def test_a_whole_name_wins_over_a_prefix(name, dimension):
    assert find_unit(name).dimension == dimension


@pytest.mark.parametrize("name", ["", "x", "kmi", "kdegC", "mm2", "KK"])
def test_what_is_no_unit(name):
    with pytest.raises(UnknownUnit):
        find_unit(name)


def test_units_of_a_dimension_are_in_order():
    assert [unit.name for unit in units_of("length")] == ["in", "ft", "yd", "m", "mi", "nmi"]
