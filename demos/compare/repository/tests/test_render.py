"""Numbers and units as text."""

import pytest
from measures.quantity import Quantity
from measures.render import render, render_number, render_readable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.50, "3.5"),
        (1234.56, "1235"),
        (123456, "123500"),
        (1e7, "1e7"),
        (2.5e-7, "2.5e-7"),
        (-0.125, "-0.125"),
    ],
)
def test_numbers(value, text):
    assert render_number(value) == text


def test_a_quantity():
    assert render(Quantity.of(3.5, "km")) == "3.5 km"
    assert render(Quantity.of(21.25, "degC"), digits=3) == "21.2 °C"


def test_the_readable_unit():
    assert render_readable(Quantity.of(7200, "s")) == "2 h"
