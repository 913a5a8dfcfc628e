"""A scenario played by a server process, with a recorder in front of it for a peer to talk to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from tests.peers.recorder import Recorder, open_recorder
from tests.peers.server import open_server

_DEADLINE_S: Final = 60  # a peer's run takes one to five seconds; the rest is for a machine that others use too


@asynccontextmanager
async def open_recorded(scenario: str | Path, folder: Path, **settings: Any) -> AsyncIterator[Recorder]:
    """A recorder; all of the block within the deadline. `scenario` is a text, or a file. Settings are the server's."""
    told = {"lifecycle": "chain"} | settings  # as `longloop serve` has it
    file = scenario if isinstance(scenario, Path) else folder / "scenario.yaml"
    if isinstance(scenario, str):
        file.write_text(scenario, "utf-8")
    with trio.fail_after(_DEADLINE_S):
        async with (
            open_server(f"script:{file}", folder / "server.log", **told) as server,
            open_recorder(server.port) as recorder,
        ):
            yield recorder
