"""A server process that is killed and started anew, for tests, and what a client has seen of a run meanwhile."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from engine.client_wire import Event, WebSocketConnector
from tests.peers.server import open_server

OVER = ("response.completed", "response.incomplete", "response.failed")


class Seen:
    """What a client has of a run: its events by number, as the last life of the run had them.

    at, then: what is done when the event of this number has come for the first time.
    """

    def __init__(self, at: int = -1, then: Callable[[], None] | None = None) -> None:
        self.events: dict[int, Event] = {}
        self.num_resumed = self.num_set_back = 0
        self.last_pause = -1
        self.has_lost_a_pause = False
        self._at = at
        self._then = then

    def add(self, event: Event) -> None:
        """The next event of the client's."""
        if event["type"] == "response.resume.accepted":
            last = event["starting_after"]
            self.num_resumed += 1
            self.num_set_back += last < len(self.events) - 1
            self.has_lost_a_pause |= last < self.last_pause
            self.events = {number: one for number, one in self.events.items() if number <= last}
            return
        number = event["sequence_number"]
        assert number == len(self.events)
        self.events[number] = event
        if event["type"] == "response.done":
            self.last_pause = number
        if number == self._at and self._then is not None:
            self._then, then = None, self._then
            then()

    def token_ids(self) -> list[tuple[bool, int]]:
        """Every id of the run's context, and whether it was sampled. Fails where one is missing or comes twice."""
        spans = [
            span for event in self.events.values() if event["type"] == "response.tokens" for span in event["spans"]
        ]
        ids: list[tuple[bool, int]] = []
        for span in spans:
            assert (span["segment"], span["offset"]) == (0, len(ids))
            ids += [(span["sampled"], one) for one in span["ids"]]
        return ids


async def replay(url: str, response_id: str) -> list[Any]:
    """All events of a run, as the server has them now."""
    async with WebSocketConnector(url).open() as connection:
        await connection.send(json.dumps({"type": "response.resume", "response_id": response_id}))
        frames = [json.loads(await connection.receive())]
        while frames[-1]["type"] not in OVER:
            frames.append(json.loads(await connection.receive()))
    return frames[1:]


class Lives:
    """The lives of a server on one port and one data folder, one after the other."""

    def __init__(self, folder: Path, backend: str, **settings: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        self.is_up = trio.Event()
        self.num = 0
        self.waits = False
        self._folder = folder
        self._backend = backend
        self._settings = {"data_dir": folder / "data"} | settings

    def kill(self) -> None:
        """End the present one."""
        self._server.kill()
        self.is_up = trio.Event()

    async def go_on(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Start it, and start it again whenever it was killed; in turns with and without waiting for the disk."""
        while True:
            self.waits = bool(self.num % 2)
            log = self._folder / f"server{self.num}.log"
            settings = {"store_wait": self.waits} | self._settings
            async with open_server(self._backend, log, self.port, **settings) as server:
                self._server = server
                self.num += 1
                self.is_up.set()
                if self.num == 1:
                    task_status.started()
                await server.wait()
                assert server.is_killed, server.log
