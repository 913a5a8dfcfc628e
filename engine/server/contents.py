"""What a response is made of, by its id: the items it was given, and its tokens.

GET  /v1/responses/{id}/input_items   everything before its output, page by page
GET  /v1/responses/{id}/tokens        the token log of its context
"""

from typing import Annotated, Final

import msgspec

from engine.errors import NotFound
from engine.items import Item, item_id
from engine.listing import Order, listed, page_of
from engine.live import Live
from engine.response import Response
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
        items = _input_items(self._find(request).response)
        return json_answer(page_of(items, limit=query.limit, order=query.order, after=query.after))

    async def _tokens(self, request: Request) -> Answer:
        live = self._find(request)
        return json_answer(TokensOf(response_id=live.response.id, data=live.spans()))

    def _find(self, request: Request) -> Live:
        return self._responses.find(request.params["id"], principal(request.head))


def _input_items(response: Response) -> list[Item]:
    """What the response was given and all that was before it, as far as the server has it as items."""
    if response.round is None:
        raise NotFound(f"The input items of response '{response.id}' are not kept.", code="items_not_kept")
    own = {item_id(item) for item in response.output}
    return [item for item in listed(response.round.items()) if item_id(item) not in own]
