"""How the tokens of a step are held to a syntax: one value that the prompt side builds and the sampler obeys."""

from typing import Literal

import msgspec


class Constraint(msgspec.Struct, frozen=True):
    """An llguidance grammar (Lark text) and when it holds.

    mode:
    - `always`: from the first token on; the grammar spans the whole step.
    - `decide`: at the first token the log-probability of `trigger_id`, with that of `second_id` behind it where there
      is one, is compared with `threshold`. At or above it the grammar holds from that first token on; below it the
      step is free text in which `trigger_id` may not be the first token. For models too small to decide by sampling.
    - `on_trigger`: free until `trigger_id` is sampled; the grammar, which begins with that token's text, then holds.
      Afterwards (grammar complete) the step goes on free again, until it ends or the trigger comes again.
    """

    grammar: str
    mode: Literal["always", "decide", "on_trigger"] = "always"
    trigger_id: int | None = None
    threshold: float = 0.0
    second_id: int | None = None
