"""Columns."""

import pytest
from measures.quantity import DimensionError, Quantity
from measures.table import Column, read_column, render_table

WALKS = [Quantity.of(3, "km"), Quantity.of(2, "mi"), Quantity.of(800, "m")]


def test_a_column_converts_what_it_is_given():
    column = read_column("walk", "km", WALKS)
    assert [round(one.value, 3) for one in column.values] == [3, 3.219, 0.8]
    assert column.total().value == pytest.approx(7.018688)


def test_columns_stand_side_by_side():
    times = read_column("time", "min", [Quantity.of(0.5, "h"), Quantity.of(40, "min")])
    assert render_table([read_column("walk", "km", WALKS), times]).splitlines() == [
        "walk (km)  time (min)",
        "        3          30",
        "    3.219          40",
        "      0.8",
    ]


def test_another_dimension_is_refused():
    with pytest.raises(DimensionError):
        Column("walk", "km").add(Quantity.of(1, "kg"))


def test_no_columns_are_no_text():
    assert render_table([]) == ""
