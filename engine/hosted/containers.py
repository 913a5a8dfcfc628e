"""The folders of the code interpreter: each has an id (`cntr_…`), is kept while it is used, and goes some time after.

Whoever knows an id may use its folder: ids cannot be guessed, and are told to the clients of the runs that made them.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import trio

from engine.hosted.sandbox import Folder, make_folder, remove_folder
from engine.ids import mint_id

PREFIX: Final = "cntr"
_REMOVE_S: Final = 10.0  # to delete what is left when the server stops


@dataclass
class _Container:
    folder: Folder
    used_at: float
    num_users: int = 0


class Containers:
    """See the module. Made by `Containers.open`, which deletes all folders in the end."""

    def __init__(self, parent: Path, idle_s: float, max_containers: int) -> None:
        self.parent = parent
        self._idle_s = idle_s
        self._max = max_containers
        self._containers: dict[str, _Container] = {}  # the longest unused first

    @classmethod
    @asynccontextmanager
    async def open(cls, idle_s: float, max_containers: int) -> AsyncIterator[Self]:
        """Containers below a new temporary folder."""
        with tempfile.TemporaryDirectory(prefix="longloop-", ignore_cleanup_errors=True) as parent:
            os.chmod(parent, 0o711)  # a sandbox's own user passes through to its folder
            containers = cls(Path(parent), idle_s, max_containers)
            try:
                yield containers
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_S):
                    await containers._expire(0)

    async def new(self) -> str:
        """The id of a new one, with an empty folder. Makes room if need be."""
        await self._expire(self._max - 1)
        id_ = mint_id(PREFIX)
        self._containers[id_] = _Container(make_folder(self.parent), trio.current_time())
        return id_

    def __contains__(self, id_: str) -> bool:
        container = self._containers.get(id_)
        return container is not None and not self._is_idle(container)

    @contextmanager
    def use(self, id_: str) -> Iterator[Folder]:
        """Its folder, which stays as long as the block is in. Raises KeyError for one that is gone."""
        if id_ not in self:
            raise KeyError(id_)
        container = self._containers[id_]
        container.num_users += 1
        try:
            yield container.folder
        finally:
            container.num_users -= 1
            container.used_at = trio.current_time()
            self._containers[id_] = self._containers.pop(id_)

    def _is_idle(self, container: _Container) -> bool:
        return not container.num_users and trio.current_time() - container.used_at > self._idle_s

    async def _expire(self, max_left: int) -> None:
        """Delete what nobody used for long, and more where there are too many; never what is in use."""
        unused = [id_ for id_, container in self._containers.items() if not container.num_users]
        num_over = max(len(self._containers) - max_left, 0)
        for place, id_ in enumerate(unused):
            if place < num_over or self._is_idle(self._containers[id_]):
                await trio.to_thread.run_sync(remove_folder, self._containers.pop(id_).folder)
