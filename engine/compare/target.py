"""Where a run goes, and what is asked for with every request."""

import ssl
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """Where a run goes, and what it is held to.

    tls: None for plain TCP. model: None for the server's default. num_forced: that many turns must call a tool, and
    the turn after them must not, whatever the model would do; 0 leaves it to the model (or to the script). extra:
    further fields of every create.
    """

    port: int
    model: str | None
    instructions: str
    tools: list[dict[str, Any]]
    tls: ssl.SSLContext | None = None
    num_forced: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def request(self, turn: int) -> dict[str, Any]:
        """What a create has, whatever the design: instructions and tools are not inherited. Turns count from 0."""
        model = {} if self.model is None else {"model": self.model}
        return {**model, "instructions": self.instructions, "tools": self.tools, **self.extra, **self.choice(turn)}

    def choice(self, turn: int) -> dict[str, Any]:
        """What is said of the choice of tools in a turn."""
        if not self.num_forced:
            return {}
        return {"tool_choice": "required" if turn < self.num_forced else "none"}
