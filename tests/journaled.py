"""Runs whose journal is written, for tests: the records as the store gets them, and machines made of them."""

from collections.abc import Callable
from typing import Any

import msgspec

from engine.events import encode_event
from engine.journal import Journal, encode_start
from engine.response import Response
from engine.response_state import ResponseState
from engine.revival import Recorded, read
from engine.settings import Settings
from engine.tokens import Span, TokenLog
from engine.writer import MintId
from tests.machines import NOW, SEALER, SETTINGS, Run, counting_ids, frozen, request


class JournaledRun(Run):
    """A run that is written down as the loop does it, with a token log that grows by a few ids a step.

    All that ends a step or the run is watched, so a test drives the response itself.
    """

    def __init__(
        self,
        *,
        settings: Settings = SETTINGS,
        goes_on: "JournaledRun | None" = None,
        num_cut: int = 0,
        **fields: Any,
    ) -> None:
        """goes_on: the run whose sequence this one goes on with. num_cut: see StartRecord."""
        unstarted = Response("resp_0", request(settings, **fields), settings, counting_ids(), NOW)
        self.start = encode_start(unstarted, "me", goes_on=goes_on is not None, num_cut=num_cut)
        self.records: list[bytes] = []
        self.tokens = goes_on.tokens.copy() if goes_on else TokenLog()
        self._tokens_seen = self.tokens.total
        self.mint_id = counting_ids()
        super().__init__(settings=settings, mint_id=self.mint_id, **fields)
        self.journal = Journal(self.response, self.tokens.total)
        self._watch()

    def recorded(self) -> Recorded:
        """What was written so far."""
        return read(self.start, self.records)

    def revived(self, settings: Settings = SETTINGS, mint_id: MintId | None = None) -> Response:
        """A machine made of what was written so far."""
        return self.recorded().revive(settings, mint_id or counting_ids(), NOW + 100, sealer=SEALER)

    def replace(self, response: Response) -> None:
        """Go on with another machine: its server died, and this one read the records."""
        self.response = response
        self.listen()
        self.journal = Journal(response, self.tokens.total, len(self.records))
        self._watch()

    def _watch(self) -> None:
        response: Any = _Watched(self.response)
        for name in ("end_step", "complete_without_sampling", "end", "fail"):
            setattr(response, name, self._recording(getattr(response, name), is_step=name == "end_step"))
        take = response.take_new_items

        def take_and_note() -> Any:
            items = take()
            self.journal.took(items)
            return items

        response.take_new_items = take_and_note
        self.response = response

    def _recording(self, act: Callable[..., None], *, is_step: bool) -> Callable[..., None]:
        def acted(*args: Any, **named: Any) -> None:
            if not self.response.is_open:
                return
            if is_step:
                self._add_tokens()
            act(*args, **named)
            number, blob = self.journal.record(self.tokens, len(self.tokens))
            assert number == len(self.records)
            self.records.append(blob)

        return acted

    def _add_tokens(self) -> None:
        total = self.tokens.total
        self.tokens.give([total, total + 1])
        self.tokens.sample(range(3))
        if self.response.request.wants_tokens:
            self.response.tokens_joined(list(self.tokens.since(self._tokens_seen)))
            self._tokens_seen = self.tokens.total


class _Watched:
    """A response some of whose methods are others."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


def state_of(response: Response) -> Any:
    """All that a response is, but for the form in which its log keeps things and the watching above."""
    others = ("log", "_writer", "request", "hosted")
    held = {name: getattr(response, name) for name in ResponseState.__slots__ if name not in others}
    log, writer = response.log, response._writer
    hosted = [response.hosted._tools, response.hosted._to_run, writer.hosted.under_way]
    readable = [encode_event(log.read(seq)) for seq in range(log.oldest, log.next)]
    asked = msgspec.json.encode(response.request)
    writing = [writer.finished, writer._streaming, writer._call]
    return frozen([asked, held, hosted, writing, log.oldest, log.next, readable])


def ids_of(spans: list[Span]) -> list[tuple[bool, int]]:
    """Every id of the spans, and whether it was sampled."""
    return [(span.sampled, one) for span in spans for one in span.ids]
