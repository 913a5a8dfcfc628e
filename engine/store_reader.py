"""Reading a store that no server has open: the token trajectories of its responses."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from engine.database import FILE_NAME, Database, DatabaseFault, open_database
from engine.errors import NotFound, ServerError
from engine.journal import Ending, StepRecord
from engine.store import Stored, StoreUnusable
from engine.tokens import Span
from engine.trajectory import Trajectory, trajectories

T = TypeVar("T")

_STEP: Final = msgspec.json.Decoder(StepRecord)


class _Echo(msgspec.Struct):
    model: str


class _Request(msgspec.Struct):
    echo: _Echo


class _Start(msgspec.Struct):
    """What is needed of a StartRecord."""

    principal: str
    request: _Request
    goes_on: bool = False


_START: Final = msgspec.json.Decoder(_Start)


@contextmanager
def open_store_reader(folder: Path) -> Iterator["StoreReader"]:
    """The store in `folder`. Raises StoreUnusable: there is none, or a server has it."""
    if not (folder / FILE_NAME).exists():
        raise StoreUnusable(f"There is no store in {folder} yet.")
    database = open_database(folder)
    try:
        yield StoreReader(database)
    finally:
        database.close()


class StoreReader:
    """An open store, whoever its responses belong to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.unreadable: list[str] = []

    def trajectories(self, ids: Iterable[str] = ()) -> Iterator[Trajectory]:
        """Those of these responses; without any, of all whose context no other response holds as a part of its own.

        What cannot be read is passed over and joins `unreadable`. Raises NotFound for an id that is not there,
        StoreUnusable where the file is damaged beyond that.
        """
        try:
            for response_id in ids or self._newest():
                yield from self._readable(response_id)
        except DatabaseFault as error:
            raise StoreUnusable(f"The store is damaged ({error}).") from error

    def _readable(self, response_id: str) -> list[Trajectory]:
        try:
            return list(self._of(response_id))
        except (ServerError, DatabaseFault):
            self.unreadable.append(response_id)
            return []

    def _newest(self) -> list[str]:
        ids, held = [], set()
        for response_id, parent, start in self._database.starts():
            ids.append(response_id)
            with suppress(ServerError):  # which is told when it is read itself
                if parent is not None and _decoded(_START, start).goes_on:
                    held.add(parent)
        return [response_id for response_id in ids if response_id not in held]

    def _of(self, response_id: str) -> Iterator[Trajectory]:
        start = self._database.start(response_id)
        if start is None:
            raise NotFound(f"Response with id '{response_id}' not found.")
        first = _decoded(_START, start)
        spans: list[Span] = []
        ending: Ending | None = None
        for stored in self._database.load_chain(response_id, first.principal):
            if not _decoded(_START, stored.start).goes_on:
                spans = []
            steps = _steps(stored)
            spans += [span for step in steps for span in step.spans]
            ending = steps[-1].ending if steps else None
        return trajectories(response_id, first.request.echo.model, _status(ending), spans)


def _steps(stored: Stored) -> list[StepRecord]:
    return [_decoded(_STEP, step) for step in stored.steps]


def _decoded(decoder: msgspec.json.Decoder[T], record: bytes) -> T:
    try:
        return decoder.decode(record)
    except msgspec.DecodeError as error:
        raise ServerError("A response was stored in a form that cannot be read.") from error


def _status(ending: Ending | None) -> str:
    if ending is None:
        return "in_progress"
    if ending.error is not None:
        return "failed"
    if ending.incomplete_details is not None:
        return "incomplete"
    return "completed" if ending.completed_at else "cancelled"
