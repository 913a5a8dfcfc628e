"""The command line."""

import argparse
import sys
from collections.abc import Sequence

from measures.convert import convert
from measures.parse import ParseError, parse
from measures.quantity import DimensionError
from measures.render import render, render_readable
from measures.units import UnknownUnit


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert a quantity and print it; exits with 2 and a sentence when it cannot be."""
    options = _read(arguments)
    try:
        quantity = parse(options.quantity)
        if options.unit is None:
            print(render_readable(quantity, options.digits))
        else:
            print(render(convert(quantity, options.unit), options.digits))
    except (ParseError, UnknownUnit, DimensionError) as error:
        print(f"measures: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="measures", description="Convert quantities.")
    parser.add_argument("quantity", help="such as '5 ft 11 in' or '3 mi + 400 m'")
    parser.add_argument("unit", nargs="?", help="what to convert to; the most readable unit when left out")
    parser.add_argument("--digits", type=int, default=4, help="significant digits")
    return parser.parse_args(arguments)
