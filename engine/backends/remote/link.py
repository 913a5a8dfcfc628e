"""The way to a service: one warm HTTP/1.1 connection a run, turns asked over it, and asked again where that is safe.

A `Link` is the service as all runs see it: its address and key, and what is known of it (which encodings it takes, its
rate limits). A `Line` is one run's connection. `line.converse(turn)` asks for one turn and hands its events to the
turn as they come; it knows nothing of what they mean. What `Turn` has to say decides whether a break is mended:

- before anything of the answer was taken, every retryable failure is tried again, after the wait that the service
  names or a growing one;
- later only a turn that `can_repeat` is (on the raw route it goes on from the tokens that it has);
- each attempt that brought something on starts the count of failures anew; an answer that ends without an end and
  brings nothing is a failure too, the second time.

Each phase has its own time: connecting, the first event, between two events, the whole turn. Cancelling `converse`
closes the connection at once, and so ends the sampling of a service that looks after it.
"""

import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

import httpx2
import msgspec
import trio

from engine.backends.rate_limit import RateLimit
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import (
    BrokenStream,
    TooSlow,
    Unreachable,
    UpstreamError,
    is_about_encoding,
    refused,
    without,
)
from engine.backends.remote.rate_limits import rate_limits_of
from engine.backends.remote.sse import EventReader
from engine.clock import wall_clock

log = logging.getLogger(__name__)

_REDIRECTED: Final = 300  # from here on an answer is none; elsewhere is not followed to: the key is for this service
_MAX_REFUSAL_BYTES: Final = 65_536
_REST_S: Final = 2.0  # for what follows an answer's end (usage, the last chunk) or a refusal's head
_FIRST_WAIT_S: Final = 0.25
_CLOSE_S: Final = 1.0


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service is and how patient a run is with it; see the settings `upstream_…`.

    base_url: with the API's version where it has one, such as https://api.cerebras.ai/v1. encoding: tried first.
    max_wait_s: a longer wait is told to the client instead. max_idle_s: a connection that rested longer is not used.
    """

    base_url: str
    key: str | None = None
    encoding: Encoding = PLAIN
    connect_s: float = 10.0
    first_token_s: float = 120.0
    between_tokens_s: float = 60.0
    total_s: float = 1800.0
    max_idle_s: float = 240.0
    retries: int = 4
    max_wait_s: float = 20.0
    max_event_bytes: int = 16 << 20


class Turn(Protocol):
    """A turn that is asked for. Used by `Line.converse` alone."""

    @property
    def path(self) -> str:
        """Behind the base URL, such as `/completions`; `^/completion` is behind the server's root."""

    @property
    def num_taken(self) -> int:
        """How much of the answer is there; grows as it comes."""

    @property
    def can_repeat(self) -> bool:
        """Whether it may be asked for (again, or for what is left) now."""

    @property
    def is_answered(self) -> bool:
        """Whether the answer has its end. What breaks after that does no harm."""

    async def body(self, encoding: Encoding) -> bytes:
        """The request's body, asked for anew for each attempt."""

    def take(self, events: Sequence[bytes]) -> bool:
        """The data of events, at least one; of an answer that is no stream, the whole body.

        True when no more is expected: the turn is answered, or what is left of it is to be asked for at once. Raises
        UpstreamError for an error chunk.
        """


class Link:
    """See the module. What it learns is remembered for all runs."""

    def __init__(self, config: LinkConfig) -> None:
        """Raises ValueError for a key that no header can carry: the error about the header would quote it."""
        if config.key and not all("!" <= character <= "~" for character in config.key):
            raise ValueError("The key of the model's service has characters that a key cannot have.")
        self.config = config
        self.encoding = config.encoding
        self.is_proven = False  # a body in this encoding has been taken
        self.rate_limits: tuple[RateLimit, ...] = ()
        url = httpx2.URL(config.base_url)
        self._is_near = url.host in ("localhost", "127.0.0.1", "::1")
        self._tls = httpx2.create_ssl_context() if url.scheme == "https" else False
        self._base = config.base_url.rstrip("/")
        self._root = str(url.copy_with(raw_path=b"/")).rstrip("/")
        bearer = [("Authorization", f"Bearer {config.key}")] if config.key else []
        self.headers = [("Accept-Encoding", "identity"), ("User-Agent", "longloop"), *bearer]

    def new_line(self) -> "Line":
        """A connection for one run, made when it is first used. To be closed."""
        return Line(self)

    def url(self, path: str) -> str:
        """The address of a path (see `Turn.path`)."""
        return self._root + path[1:] if path.startswith("^") else self._base + path

    def new_client(self) -> httpx2.AsyncClient:
        """A client with one connection. A proxy that the environment names is not for servers on this machine."""
        config = self.config
        return httpx2.AsyncClient(
            verify=self._tls,
            headers=self.headers,
            limits=httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=config.max_idle_s),
            # How long to wait for an answer is not the client's business: see `Line`.
            timeout=httpx2.Timeout(None, connect=config.connect_s),
            trust_env=not self._is_near,
        )

    def without_key(self, text: str) -> str:
        """What a service has said, for the log."""
        return without(self.config.key, text) if self.config.key else text

    def heard(self, encoding: Encoding, headers: httpx2.Headers) -> None:
        """The service took a request in this encoding, and said this in its answer's head."""
        self.encoding, self.is_proven = encoding, True
        self.rate_limits = rate_limits_of(headers) or self.rate_limits


class Line:
    """One run's connection. One turn at a time; another one waits for it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._config = link.config
        self._client = link.new_client()
        self._lock = trio.Lock()

    async def converse(self, turn: Turn) -> None:
        """Ask for a turn until it is answered. Raises UpstreamError."""
        async with self._lock:
            with trio.move_on_after(self._config.total_s):
                await self._attempts(turn)
                return
        raise _logged(TooSlow(f"not done after {self._config.total_s:g} s"))

    async def get(self, path: str) -> bytes:
        """The body of a GET. Raises UpstreamError; tries once."""
        async with self._lock:
            with trio.move_on_after(self._config.first_token_s):
                try:
                    # As it comes: what would unpack it has failures of its own, and no limit to what it makes of it.
                    request = self._client.build_request("GET", self._link.url(path))
                    answer = await self._client.send(request, stream=True)
                    async with _open_chunks(answer) as chunks:
                        body = await _whole(chunks, self._config.max_event_bytes)
                except httpx2.TransportError as error:
                    raise Unreachable(_named(error)) from error
                if answer.status_code >= _REDIRECTED:
                    raise self._refused(answer, body)
                return body
        raise Unreachable(f"no answer in {self._config.first_token_s:g} s")

    async def warm(self, path: str) -> None:
        """Have the connection made (TCP, TLS) by a GET that means nothing. Never fails: a turn will say what is."""
        try:
            with trio.move_on_after(self._config.connect_s):
                await self.get(path)
        except UpstreamError as error:
            log.debug("warming: %s", error.detail)

    async def aclose(self) -> None:
        """Close the connection."""
        with trio.move_on_after(_CLOSE_S, shield=True):
            await self._client.aclose()

    # --- a turn

    async def _attempts(self, turn: Turn) -> None:
        failures = num_idle = 0
        while not turn.is_answered:
            before = turn.num_taken
            try:
                await self._attempt(turn)
                num_idle = 0 if turn.num_taken > before else num_idle + 1
                if num_idle > 1 and not turn.is_answered:  # once a turn may ask anew at once, in another way
                    raise BrokenStream("it ends, and has brought nothing")
            except UpstreamError as error:
                if self._config.key:
                    error.hide(self._config.key)
                if turn.is_answered:
                    return
                failures = 1 if turn.num_taken > before else failures + 1
                wait_s = self._wait_s(failures, error)
                if wait_s is None or not turn.can_repeat:
                    raise _logged(error) from error.__cause__
                log.info("asking again in %.2f s: %s", wait_s, error.detail)
                await trio.sleep(wait_s)

    def _wait_s(self, failures: int, error: UpstreamError) -> float | None:
        """How long before another attempt; None when there is to be none."""
        if not error.is_retryable or failures > self._config.retries:
            return None
        if error.wait_s is not None:
            return error.wait_s if error.wait_s <= self._config.max_wait_s else None
        if failures == 1 and not error.upstream_status:
            return 0.0  # most likely a kept connection that the service has closed
        wait_s = min(_FIRST_WAIT_S * 2.0 ** (failures - 1), self._config.max_wait_s)
        return wait_s * random.uniform(0.75, 1.25)

    async def _attempt(self, turn: Turn) -> None:
        """One answer, in the encoding that the service takes."""
        encoding: Encoding | None = self._link.encoding
        while encoding is not None:
            try:
                await self._ask(turn, encoding)
                return
            except UpstreamError as error:
                encoding = encoding.simpler()
                if encoding is None or not is_about_encoding(error, is_proven=self._link.is_proven):
                    raise

    async def _ask(self, turn: Turn, encoding: Encoding) -> None:
        body = await turn.body(encoding)
        request = self._client.build_request(
            "POST",
            self._link.url(turn.path),
            content=body,
            headers=[("Accept", "text/event-stream"), *encoding.headers],
        )
        with trio.move_on_after(self._config.first_token_s) as scope:
            try:
                answer = await self._client.send(request, stream=True)
            except httpx2.TransportError as error:
                raise Unreachable(_named(error)) from error
            try:
                async with _open_chunks(answer) as chunks:
                    await self._read(answer, chunks, turn, encoding, scope)
            except httpx2.TransportError as error:
                raise BrokenStream(_named(error)) from error
        if scope.cancelled_caught and not turn.is_answered:
            raise BrokenStream("nothing came for too long")

    async def _read(
        self,
        answer: httpx2.Response,
        chunks: AsyncIterator[bytes],
        turn: Turn,
        encoding: Encoding,
        scope: trio.CancelScope,
    ) -> None:
        if answer.status_code >= _REDIRECTED:
            body = b""  # the head has said no; its reasons may never come
            with trio.move_on_after(_REST_S):
                body = await _whole(chunks, _MAX_REFUSAL_BYTES)
            raise self._refused(answer, body)
        self._link.heard(encoding, answer.headers)
        if not answer.headers.get("content-type", "").startswith("application/json"):
            await self._read_stream(chunks, turn, scope)
        elif not turn.take([await _whole(chunks, self._config.max_event_bytes)]) and not turn.is_answered:
            raise BrokenStream("it is no stream, and not whole")

    def _refused(self, answer: httpx2.Response, body: bytes) -> UpstreamError:
        # Some services say which key they refuse; it goes before anything else of them is cut short.
        text = self._link.without_key(body.decode("utf-8", "replace"))
        return refused(answer.status_code, text.encode(), answer.headers, wall_clock())

    async def _read_stream(self, chunks: AsyncIterator[bytes], turn: Turn, scope: trio.CancelScope) -> None:
        reader = EventReader(self._config.max_event_bytes)
        is_done = False
        async for chunk in chunks:
            if is_done:
                continue  # read on to the end, or the connection could not be used again
            if events := reader.feed(chunk):
                is_done = turn.take(events)
                if is_done and not turn.is_answered:
                    return
                now = trio.current_time()
                if turn.is_answered:
                    scope.deadline = min(scope.deadline, now + _REST_S)
                else:
                    scope.deadline = now + self._config.between_tokens_s
        if not turn.is_answered:
            raise BrokenStream("it ended before its end")


@asynccontextmanager
async def _open_chunks(answer: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """The answer's body as it comes; closes what has not come."""
    chunks = answer.aiter_raw()
    try:
        yield chunks
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            await answer.aclose()
            # httpx2 nests async generators; left where they are they would be warned of when collected.
            with suppress(httpx2.TransportError):
                async for _ in chunks:
                    pass


async def _whole(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    """Everything, or at least so many bytes."""
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            break
    return body


def _logged(error: UpstreamError) -> UpstreamError:
    log.warning("the model's service: %s (%s)", error.message, error.detail)
    return error


def _named(error: httpx2.TransportError) -> str:
    """What happened, for the log."""
    return f"{type(error).__name__}: {error}"
