"""errors.py: what each class looks like on the wire."""

import pytest

from engine.errors import BackendError, EngineError, NotFound, RequestError, ServerError

WIRE = [
    (RequestError("m"), 400, "invalid_request_error", "invalid_value"),
    (NotFound("m"), 404, "invalid_request_error", "response_not_found"),
    (ServerError("m"), 500, "server_error", "server_error"),
    (BackendError("m"), 500, "server_error", "server_error"),
    (EngineError("m"), 500, "server_error", "server_error"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), WIRE)
def test_class_knows_its_wire_form(error: EngineError, status: int, kind: str, code: str) -> None:
    assert error.status == status
    assert error.body() == {"type": kind, "code": code, "message": "m", "param": None}
    assert str(error) == "m"


def test_raise_site_may_say_param_code_and_status() -> None:
    error = RequestError("m", param="input", code="rate_limit_exceeded", status=429)
    assert (error.param, error.code, error.status) == ("input", "rate_limit_exceeded", 429)
    assert error.body()["param"] == "input"


@pytest.mark.parametrize(
    ("inner", "prefix", "outer"),
    [
        (None, "input[2]", "input[2]"),
        ("call_id", "input[2]", "input[2].call_id"),
        ("[1].text", "content", "content[1].text"),
    ],
)
def test_at_prefixes_the_path(inner: str | None, prefix: str, outer: str) -> None:
    assert RequestError("m", param=inner).at(prefix).param == outer


def test_at_keeps_class_code_status_and_message_and_leaves_the_inner_error_alone() -> None:
    inner = NotFound("m", param="id", code="gone", status=410)
    outer = inner.at("input")
    assert type(outer) is NotFound
    assert (outer.message, outer.code, outer.status, outer.param) == ("m", "gone", 410, "input.id")
    assert inner.param == "id"


def test_an_error_raised_from_its_inner_form_is_not_its_own_cause() -> None:
    with pytest.raises(RequestError) as caught:
        try:
            raise RequestError("m", param="id")
        except RequestError as error:
            raise error.at("input") from error
    assert caught.value.__cause__ is not caught.value
