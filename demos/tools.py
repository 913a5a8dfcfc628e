"""Two tools whose outputs nobody can guess: an answer that quotes them proves that they ran."""

import random


def draw_lucky_number(maximum: int = 1_000_000) -> int:
    """Draw a lucky number.

    Args:
        maximum: the largest number that may be drawn
    """
    return random.randint(min(maximum, 1000), max(maximum, 1000))


def get_temperature(city: str) -> str:
    """Measure the temperature in a city.

    Args:
        city: name of the city
    """
    return f"{random.uniform(-20, 40):.3f} °C in {city}"
