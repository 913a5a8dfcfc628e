"""query.py: a URL's query becomes values, or an error that names the one that is wrong."""

from typing import Annotated

import msgspec
import pytest

from engine.errors import RequestError
from engine.server.exchange import Head
from engine.server.query import read_query


class Query(msgspec.Struct, frozen=True):
    stream: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    after: str | None = None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", Query()),
        ("?", Query()),
        ("?stream=true&limit=7&after=msg_%31", Query(True, 7, "msg_1")),
        ("?stream=0&limit=100&after=", Query(False, 100, "")),
        ("?after=5", Query(after="5")),
        ("?include[]=a&include[]=b&other=1&other=2", Query()),
    ],
)
def test_values_have_the_types_of_the_fields(query: str, expected: Query) -> None:
    assert read_query(Head("GET", f"/p{query}"), Query) == expected


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=", "stream"),
        ("stream=maybe", "stream"),
        ("limit=0", "limit"),
        ("limit=1.5", "limit"),
        ("limit=2&limit=3", "limit"),
        ("after=a&after=b", "after"),
    ],
)
def test_a_value_that_is_wrong_is_named(query: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_query(Head("GET", f"/p?{query}"), Query)
    assert (caught.value.param, caught.value.status) == (param, 400)
