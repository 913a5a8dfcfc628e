"""Quantities with units."""

from measures.convert import convert
from measures.parse import ParseError, parse
from measures.quantity import Quantity
from measures.render import render

__all__ = ["ParseError", "Quantity", "convert", "parse", "render"]
