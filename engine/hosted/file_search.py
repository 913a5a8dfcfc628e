"""`file_search`: the model searches folders that the operator has indexed (`longloop index`)."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import trio

from engine.errors import NotFound, RequestError
from engine.hosted.base import Definition, HostedCall, HostedResult, Listed, Tell, failed
from engine.hosted.file_filters import Attributes, read_filter
from engine.hosted.file_index import FileIndex, Hit, IndexUnusable, SearchTooSlow
from engine.hosted.reading import read_arguments, read_fields
from engine.toolspec import Tool

log = logging.getLogger(__name__)

ITEM: Final = "file_search_call"
_NAME: Final = "file_search"
_RESULTS: Final = "file_search_call.results"
_DESCRIPTION: Final = "Search these folders for passages that have words of the queries: {names}."
_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "a few words each; passages with words of any of them are found",
        }
    },
    "required": ["queries"],
    "additionalProperties": False,
}
_MAX_SEARCHES: Final = 4  # threads; a search uses a core


class _Ranking(msgspec.Struct, frozen=True):
    """`ranker` and `hybrid_search` choose among rankers of OpenAI's; there is one here."""

    score_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class _Fields(msgspec.Struct, frozen=True):
    vector_store_ids: Annotated[list[str], msgspec.Meta(min_length=1)]
    max_num_results: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10
    filters: dict[str, Any] | None = None
    ranking_options: _Ranking | None = None


class _Arguments(msgspec.Struct, frozen=True):
    queries: Annotated[list[str], msgspec.Meta(min_length=1)]


class FileSearchHost:
    """See the module."""

    def __init__(self, data_dir: Path, timeout_s: float) -> None:
        """data_dir: where the index is. timeout_s: of one search."""
        self._data_dir = data_dir
        self._timeout_s = timeout_s
        self._threads = trio.CapacityLimiter(_MAX_SEARCHES)

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> "FilesOfRun":
        """See base.Host."""
        fields = read_fields(definition, _Fields)
        names = await trio.to_thread.run_sync(self._names, limiter=self._threads)
        for place, name in enumerate(fields.vector_store_ids):
            if name not in names:
                raise NotFound(
                    f"Vector store '{name}' not found. `longloop index FOLDER --name {name}` makes it.",
                    param=f"vector_store_ids[{place}]",
                    code="vector_store_not_found",
                )
        return FilesOfRun(self, fields, _passes(fields), _RESULTS in include)

    async def search(
        self, names: Sequence[str], queries: Sequence[str], max_hits: int, passes: Callable[[Attributes], bool] | None
    ) -> list[Hit]:
        """See FileIndex.search. Raises IndexUnusable."""
        search = partial(self._search, names, queries, max_hits, passes)
        return await trio.to_thread.run_sync(search, limiter=self._threads)

    def _names(self) -> list[str]:
        with FileIndex.open(self._data_dir) as index:
            return [folder.name for folder in index.folders()]

    def _search(
        self, names: Sequence[str], queries: Sequence[str], max_hits: int, passes: Callable[[Attributes], bool] | None
    ) -> list[Hit]:
        with FileIndex.open(self._data_dir) as index:
            return index.search(names, queries, max_hits, passes, self._timeout_s)


class FilesOfRun:
    """One definition's tool."""

    listed: Listed | None = None

    def __init__(
        self,
        host: FileSearchHost,
        fields: _Fields,
        passes: Callable[[Attributes], bool] | None,
        shows_results: bool,
    ) -> None:
        description = _DESCRIPTION.format(names=", ".join(fields.vector_store_ids))
        self.tools = [Tool("function", _NAME, description, _PARAMETERS, hosted=ITEM)]
        self._host = host
        self._fields = fields
        self._passes = passes
        self._shows_results = shows_results

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """See base.HostedTool."""
        queries = read_arguments(call, _Arguments).queries
        fields = self._fields
        try:
            hits = await self._host.search(fields.vector_store_ids, queries, fields.max_num_results, self._passes)
        except SearchTooSlow:
            return failed("The search took too long. Use fewer, rarer words.")
        except IndexUnusable as error:
            log.error("%s", error.message)
            return failed("The files cannot be read.")
        least = fields.ranking_options.score_threshold if fields.ranking_options else 0.0
        hits = [hit for hit in hits if hit.score >= least]
        return HostedResult(_told(hits), None, {"results": list(map(_result, hits))} if self._shows_results else {})


def _passes(fields: _Fields) -> Callable[[Attributes], bool] | None:
    if fields.filters is None:
        return None
    try:
        return read_filter(fields.filters)
    except ValueError as error:
        raise RequestError(f"This is no filter: {error}.", param="filters") from error


def _told(hits: Sequence[Hit]) -> str:
    if not hits:
        return "Nothing was found. Try other words."
    return "\n\n".join(
        f"[{number}] {hit.path} (score {hit.score:.2f})\n{hit.text}" for number, hit in enumerate(hits, 1)
    )


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "file_id": hit.file_id,
        "filename": hit.path,
        "score": hit.score,
        "text": hit.text,
        "attributes": hit.attributes,
    }
