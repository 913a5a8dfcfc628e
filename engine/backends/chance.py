"""How likely a model held an id: the value that the sampler makes and the parser puts beside the text."""

import msgspec


class Chance(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities in the model's own distribution: before grammar, penalties and temperature.

    top: the likeliest ids, likeliest first, each with its log-probability.
    """

    logprob: float
    top: list[tuple[int, float]] = []
