"""What a response is made of, by its id: the items it was given, and its tokens.

GET  /v1/responses/{id}/input_items   everything before its output, page by page
GET  /v1/responses/{id}/tokens        the token log of its context
"""

from typing import Annotated, Final

import msgspec

from engine.listing import Order, listed, page_of
from engine.responses import Responses
from engine.server.access import principal
from engine.server.exchange import Answer, Request, json_answer
from engine.server.query import read_query
from engine.server.routes import Row
from engine.tokens import Span

_ONE: Final = "/v1/responses/{id}"


class PageQuery(msgspec.Struct, frozen=True):
    """Which part of a list is wanted."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Order = "desc"
    after: str | None = None


class TokensOf(msgspec.Struct, kw_only=True):
    """Every id that the context of a response has held, in order; empty on backends that see no tokens."""

    object: str = "response.tokens"
    response_id: str
    data: list[Span]


class ContentRoutes:
    """What answers requests for the contents of responses."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def rows(self) -> list[Row]:
        """Methods, URLs, and what answers them."""
        return [("GET", f"{_ONE}/input_items", self._input_items), ("GET", f"{_ONE}/tokens", self._tokens)]

    async def _input_items(self, request: Request) -> Answer:
        query = read_query(request.head, PageQuery)
        items = listed(await self._responses.records.given(request.params["id"], principal(request.head)))
        return json_answer(page_of(items, limit=query.limit, order=query.order, after=query.after))

    async def _tokens(self, request: Request) -> Answer:
        response_id = request.params["id"]
        spans = await self._responses.records.spans(response_id, principal(request.head))
        return json_answer(TokensOf(response_id=response_id, data=spans))
