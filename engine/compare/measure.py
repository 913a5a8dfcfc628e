"""Playing one run by one design over one link, and what it took."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from engine.bench.processes import Served
from engine.compare.designs import Design
from engine.compare.link import Link, Proxy, start_proxy
from engine.compare.plan import Point
from engine.compare.played import Course, Played
from engine.compare.target import Target
from engine.compare.tls import Contexts, make_contexts, start_terminator
from engine.compare.work import Work

# What a server that looks for keys and for names of its own does with every text.
POLICIES: Final = (
    '[{name = "keys", kind = "secrets"},'
    ' {name = "names", kind = "patterns", patterns = ["(?:falcon|heron)-[0-9]{1,9}"], action = "flag"}]'
)
_RUN_TIMEOUT_S: Final = 300


@dataclass
class Bench:
    """A server, the ways to it, and the work."""

    server: Served
    work: Work
    _nursery: trio.Nursery
    _contexts: Contexts
    _tls_port: int
    _proxies: dict[tuple[Link, bool], Proxy] = field(default_factory=dict)

    async def play(self, design: Design, point: Point, *, tools_take_time: bool = True) -> Played:
        """One run. Raises RunFailed, trio.TooSlowError."""
        is_secured = design.connection == "fresh TLS"
        proxy = await self._proxy(Link(point.rtt_ms / 1000, point.up_mbit_per_s * 1e6 / 8), is_secured)
        script = self.work.script
        tls = self._contexts.client if is_secured else None
        target = Target(proxy.port, point.model, script.instructions, script.tools, tls)
        up, down, cpu = proxy.traffic.bytes_up, proxy.traffic.bytes_down, self.server.cpu_seconds()
        course = Course(self.work, tools_take_time=tools_take_time)
        with trio.fail_after(_RUN_TIMEOUT_S):
            await design.play(target, course)
        played = course.played
        played.bytes_up, played.bytes_down = proxy.traffic.bytes_up - up, proxy.traffic.bytes_down - down
        played.cpu_ms = (self.server.cpu_seconds() - cpu) * 1000
        return played

    async def _proxy(self, link: Link, is_secured: bool) -> Proxy:
        if (link, is_secured) not in self._proxies:
            port = self._tls_port if is_secured else self.server.port
            self._proxies[link, is_secured] = await start_proxy(self._nursery, port, link)
        return self._proxies[link, is_secured]


@asynccontextmanager
async def open_bench(server: Served, work: Work) -> AsyncIterator[Bench]:
    """A bench before a server that plays the scenarios of the points."""
    contexts = make_contexts()
    async with trio.open_nursery() as nursery:
        tls_port = await start_terminator(nursery, server.port, contexts.server)
        yield Bench(server, work, nursery, contexts, tls_port)
        nursery.cancel_scope.cancel()


def settings_of(**changes: Any) -> dict[str, object]:
    """What the measured server is set to: all of the real work, and no rest of other runs."""
    return {"tokenizer": "default", "policies": POLICIES} | changes
