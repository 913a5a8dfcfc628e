"""table.py: patterns, methods, and what is refused."""

import pytest

from engine.errors import NotFound
from engine.server.exchange import HttpError
from engine.server.table import RouteTable, unknown_url

TABLE = RouteTable(
    [
        ("POST", "/r", "make"),
        ("GET HEAD", "/r", "list"),
        ("POST", "/r/count", "count"),
        ("GET", "/r/{id}", "one"),
        ("GET", "/r/{id}/parts/{part_id}", "part"),
        ("GET", "/m/{id*}", "model"),
        ("GET", "/a.b", "dot"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/r", ("make", {})),
        ("HEAD", "/r", ("list", {})),
        ("POST", "/r/count", ("count", {})),
        ("GET", "/r/count", ("one", {"id": "count"})),
        ("GET", "/r/1", ("one", {"id": "1"})),
        ("GET", "/r/a%2Fb%20c", ("one", {"id": "a/b c"})),
        ("GET", "/r/%7Bid%7D", ("one", {"id": "{id}"})),
        ("GET", "/r/1/parts/2", ("part", {"id": "1", "part_id": "2"})),
        ("GET", "/m/a/b", ("model", {"id": "a/b"})),
        ("GET", "/a.b", ("dot", {})),
    ],
)
def test_the_first_row_that_fits_wins(method: str, path: str, found: tuple[str, dict[str, str]]) -> None:
    assert TABLE.find(method, path) == found


@pytest.mark.parametrize("path", ["", "/", "/r/", "/R", "r", "/r/1/", "/r/1/parts", "/r//parts/2", "/m/", "/aXb"])
def test_a_path_that_fits_no_row_is_404(path: str) -> None:
    with pytest.raises(NotFound) as error:
        TABLE.find("GET", path)
    assert (error.value.status, error.value.code) == (404, "unknown_url")
    assert error.value.message == unknown_url("GET", path).message == f"Unknown request URL: GET {path}."


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("DELETE", "/r", "POST, GET, HEAD"), ("PUT", "/r/count", "POST, GET"), ("post", "/r/1", "GET")],
)
def test_another_method_is_405_and_names_those_of_every_row_that_fits(method: str, path: str, allow: str) -> None:
    with pytest.raises(HttpError) as error:
        TABLE.find(method, path)
    assert (error.value.status, error.value.code) == (405, "method_not_allowed")
    assert error.value.headers == (("allow", allow),)
