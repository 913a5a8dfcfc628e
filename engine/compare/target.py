"""Where a run goes and what is asked for with every request."""

import ssl
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """tls: None for plain TCP. `model` is a scenario of the server."""

    port: int
    model: str
    instructions: str
    tools: list[dict[str, Any]]
    tls: ssl.SSLContext | None = None

    def request(self) -> dict[str, Any]:
        """The fields that every create has, whatever the design: instructions and tools are not inherited."""
        return {"model": self.model, "instructions": self.instructions, "tools": self.tools}
