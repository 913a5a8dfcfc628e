"""Two tools whose outputs nobody can guess: an answer that quotes them proves that they ran.

They take their time (some half a second of hashing), as tools do, so that one sees the run pause for them.
"""

import hashlib
import os


def _draw(limit: int) -> int:
    """A random number from 0 to `limit` - 1, slowly."""
    return int.from_bytes(hashlib.pbkdf2_hmac("sha256", os.urandom(16), b"lucky", 2_000_000)) % limit


def draw_lucky_number(maximum: int = 1000) -> int:
    """Draw a lucky number.

    Args:
        maximum: the largest number that may be drawn
    """
    return 1 + _draw(max(maximum, 1))


def get_temperature(city: str) -> str:
    """Measure the temperature in a city.

    Args:
        city: name of the city
    """
    return f"{_draw(60_000) / 1000 - 20:.3f} °C in {city}"
