"""The designs that are compared, each with how its client connects."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from engine.compare.over_http import play_previous, play_stateless
from engine.compare.over_websocket import play_append, play_append_early, play_chain, play_inject
from engine.compare.played import Course
from engine.compare.target import Target

Connection = Literal["kept", "fresh TCP", "fresh TLS", "socket"]


@dataclass(frozen=True)
class Design:
    """family: what is compared; `connection`: how its client connects, which clients of one family do differently."""

    key: str
    family: str
    connection: Connection
    play: Callable[[Target, Course], Awaitable[None]]

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        return self.family if self.connection == "socket" else f"{self.family}, {self.connection}"


def _over_http(key: str, family: str, play: Callable[..., Awaitable[None]]) -> tuple[Design, ...]:
    kept, fresh = partial(play, keeps=True), partial(play, keeps=False)
    return (
        Design(key, family, "kept", kept),
        Design(f"{key}-tcp", family, "fresh TCP", fresh),
        Design(f"{key}-tls", family, "fresh TLS", fresh),
    )


DESIGNS: Final = {
    design.key: design
    for design in (
        *_over_http("stateless", "stateless HTTP", play_stateless),
        *_over_http("previous", "HTTP with previous id", play_previous),
        Design("chain", "chain", "socket", play_chain),
        Design("append", "append", "socket", play_append),
        Design("early", "append early", "socket", play_append_early),
        Design("inject", "inject", "socket", play_inject),
    )
}
