"""Runs over HTTP: made by a POST, then read and called off by their id.

POST  /v1/responses               the whole response; with `stream` its events; with `background` how it begins
GET   /v1/responses/{id}          the response as it is now; with `?stream=true` its events, from there on as they come
DELETE  /v1/responses/{id}        forgets it
POST  /v1/responses/{id}/cancel   ends a run in the background
POST  /v1/responses/input_tokens  how many tokens such a run would begin with
POST  /v1/responses/compact       its input made short, to begin anew with
"""

from functools import partial
from typing import Annotated, Final

import msgspec

from engine.bodies import CreateBody, decode_create_body
from engine.clock import now_ms
from engine.errors import RequestError
from engine.live import Live
from engine.opening import Before
from engine.outgoing import EventForm
from engine.parameters import unsupported
from engine.request import RunRequest, read_create_body
from engine.responses import Responses
from engine.server.access import principal
from engine.server.exchange import Answer, Request, Send, StreamedAnswer, json_answer
from engine.server.query import read_query
from engine.server.reader import open_reader
from engine.server.routes import Row
from engine.server.sse import SSE_HEADERS, send_events
from engine.settings import Settings

_ALL: Final = "/v1/responses"
_ONE: Final = "/v1/responses/{id}"
_REVIVAL_HEADER: Final = "x-revival"


class ReadQuery(msgspec.Struct, frozen=True):
    """How a run is to be read: at once, or its events behind `starting_after` (-1 for all), padded on request.

    revival: the last one that the client was told of.
    """

    stream: bool = False
    include_obfuscation: bool = False
    starting_after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    revival: str | None = None


class RunRoutes:
    """What answers requests for runs."""

    def __init__(self, responses: Responses, settings: Settings) -> None:
        self._responses = responses
        self._settings = settings

    def rows(self) -> list[Row]:
        """Methods, URLs, and what answers them."""
        return [
            ("POST", _ALL, self._create),
            ("POST", f"{_ALL}/input_tokens", self._count),
            ("POST", f"{_ALL}/compact", self._compact),
            ("GET", _ONE, self._read),
            ("DELETE", _ONE, self._delete),
            ("POST", f"{_ONE}/cancel", self._cancel),
        ]

    async def _create(self, request: Request) -> Answer | StreamedAnswer:
        """Raises EngineError: nothing was started."""
        data = await request.read_body()
        received_ms = now_ms()
        body = self._decode(data)
        asked = self._check(body)
        validate_ms = now_ms() - received_ms
        owner = principal(request.head)
        live = await self._responses.create(asked, owner, await self._before(asked, owner))
        live.validate_ms = validate_ms
        if body.stream:
            return self._stream(live, 0, EventForm(self._settings.event_names, asked.wants_padding))
        if not asked.echo.background:
            with open_reader(live) as reader:
                await reader.wait_end()
        return json_answer(live.response.snapshot())

    async def _count(self, request: Request) -> Answer:
        body = self._decode(await request.read_body())
        asked = self._check(body if body.input is not None else msgspec.structs.replace(body, input=[]))
        owner = principal(request.head)
        num_tokens = await self._responses.count_input(asked, owner, await self._before(asked, owner))
        return json_answer({"object": "response.input_tokens", "input_tokens": num_tokens})

    async def _compact(self, request: Request) -> Answer:
        body = self._decode(await request.read_body())
        if body.model is None:
            raise RequestError("Missing required parameter: 'model'.", param="model", code="missing_required_parameter")
        if body.conversation is not None:
            raise unsupported("conversation")
        asked = self._check(body if body.input is not None else msgspec.structs.replace(body, input=[]))
        owner = principal(request.head)
        return json_answer(await self._responses.compact(asked, owner, await self._before(asked, owner)))

    def _decode(self, data: bytes) -> CreateBody:
        return decode_create_body(data, max_depth=self._settings.max_json_depth)

    def _check(self, body: CreateBody) -> RunRequest:
        return read_create_body(body, default_model=self._responses.default_model(), settings=self._settings)

    async def _before(self, asked: RunRequest, owner: str) -> Before | None:
        if asked.previous_response_id is None:
            return None
        return await self._responses.records.before(asked.previous_response_id, owner)

    async def _read(self, request: Request) -> Answer | StreamedAnswer:
        query = read_query(request.head, ReadQuery)
        if query.stream:
            live = await self._responses.watch(request.params["id"], principal(request.head))
            _check_is_there(live, query)
            form = EventForm(self._settings.event_names, query.include_obfuscation)
            return self._stream(live, query.starting_after + 1, form, is_visitor=True)
        response = await self._responses.records.read(request.params["id"], principal(request.head))
        return json_answer(response.snapshot())

    async def _cancel(self, request: Request) -> Answer:
        """The response as it ended, by this or before."""
        response_id, owner = request.params["id"], principal(request.head)
        response = await self._responses.records.read(response_id, owner)
        if not response.request.echo.background:
            raise RequestError("Only a response in the background can be cancelled.", param="background")
        live = await self._responses.recall(response_id, owner)
        with open_reader(live, is_visitor=True) as reader:
            if live.response.is_open:
                live.cancel("cancelled")
            await reader.wait_end()
        return json_answer(live.response.snapshot())

    async def _delete(self, request: Request) -> Answer:
        response_id = request.params["id"]
        await self._responses.records.delete(response_id, principal(request.head))
        return json_answer({"id": response_id, "object": "response", "deleted": True})

    def _stream(self, live: Live, next_seq: int, form: EventForm, *, is_visitor: bool = False) -> StreamedAnswer:
        revival = [(_REVIVAL_HEADER, live.revivals[-1].id)] if live.revivals else []
        produce = partial(self._send_events, live, next_seq, form, is_visitor)
        return StreamedAnswer(produce, (*SSE_HEADERS, *revival))

    async def _send_events(self, live: Live, next_seq: int, form: EventForm, is_visitor: bool, send: Send) -> None:
        with open_reader(live, next_seq, form, is_visitor=is_visitor) as reader:
            await send_events(send, reader, self._settings.sse_keep_alive_s)


def _check_is_there(live: Live, query: ReadQuery) -> None:
    """Raises RequestError when what the client has had up to `starting_after` is not what the run has there now."""
    first = live.first_missed(query.starting_after, query.revival)
    if first <= query.starting_after:
        raise RequestError(
            f"This response was taken up after its server died, and its events from number {first} on are others now. "
            f"Read on with starting_after={first - 1}.",
            param="starting_after",
            code="events_replaced",
        )
