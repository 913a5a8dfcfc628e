"""`longloop export`: token trajectories as JSON lines, from the store or from a running server."""

from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from engine.client_wire import endpoint_url
from engine.commands.serve import UsageError
from engine.errors import EngineError
from engine.store import StoreUnusable
from engine.store_reader import open_store_reader
from engine.tokens import Span
from engine.trajectory import Trajectory, trajectories

T = TypeVar("T")

_NO_TOKENS: Final = (
    "No token ids are recorded for what was named: the local model and services with --tokenizer have them, "
    "a script only with --set tokenizer=default."
)
_TIMEOUT_S: Final = 60  # a token log is read from memory or from the disk, nothing is computed


class _TokensOf(msgspec.Struct):
    data: list[Span]


class _Response(msgspec.Struct):
    model: str
    status: str


def export_command(folder: Path, ids: Sequence[str], *, url: str | None = None, api_key: str | None = None) -> None:
    """Print a line for each segment of these responses; without any, of all in the store. Raises UsageError."""
    try:
        if url is None:
            with open_store_reader(folder) as reader:
                num_lines = print_lines(reader.trajectories(ids))
                _complain_of(reader.unreadable)
        elif ids:
            num_lines = print_lines(_served_trajectories(_Server(url, api_key), ids))
        else:
            raise UsageError("With --url, say which responses: a server does not list them.")
    except StoreUnusable as error:
        raise UsageError(f"{error.message} A running server is asked with --url.") from error
    except (EngineError, ValueError) as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise  # whoever reads has enough
    except OSError as error:
        raise UsageError(f"The lines cannot be written ({error}).") from error
    if ids and not num_lines:
        raise UsageError(_NO_TOKENS)


def _complain_of(unreadable: Sequence[str]) -> None:
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if unreadable[1:] else ""
        raise UsageError(f"What is stored of {unreadable[0]}{more} cannot be read; the rest was written.")


def print_lines(found: Iterable[Trajectory]) -> int:
    """Each as a line of JSON. Gives how many there were."""
    num_lines = 0
    for trajectory in found:
        print(msgspec.json.encode(trajectory).decode())
        num_lines += 1
    return num_lines


def _served_trajectories(server: "_Server", ids: Iterable[str]) -> Iterator[Trajectory]:
    """The trajectories of a running server's responses. Raises UsageError for what it refuses."""
    for response_id in ids:
        path = quote(response_id, safe="")
        response = server.get(path, _Response)
        spans = server.get(f"{path}/tokens", _TokensOf).data
        yield from trajectories(response_id, response.model, response.status, spans)


class _Server:
    """A running server, asked as the client's sockets do it: without a proxy."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """url: in any form that `--url` takes. Raises ValueError for another."""
        parts = urlsplit(endpoint_url(url))
        scheme = "https" if parts.scheme == "wss" else "http"
        self._base = urlunsplit((scheme, parts.netloc, parts.path, "", ""))
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._opener: OpenerDirector = build_opener(ProxyHandler({}))

    def get(self, path: str, kind: type[T]) -> T:
        """What is at `/v1/responses/{path}`. Raises UsageError."""
        request = Request(f"{self._base}/{path}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except HTTPError as error:
            with error:
                raise UsageError(f"The server refused: {_said(error)}") from error
        except (OSError, HTTPException) as error:
            raise UsageError(f"{self._url} cannot be asked ({error}).") from error


def _said(error: HTTPError) -> str:
    try:
        return str(msgspec.json.decode(error.read())["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {error.code}"
