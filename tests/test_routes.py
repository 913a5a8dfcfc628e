"""Every URL, method and handshake, and the values they are decided from."""

import json
from typing import Any

import pytest

from engine.backends.base import ModelInfo, model_not_found
from engine.errors import EngineError, RequestError
from engine.server.access import Admission
from engine.server.exchange import Answer, Head, Request, error_answer
from engine.server.http import Outcome
from engine.server.routes import Routes, Service
from engine.settings import LifecycleName, Settings

HANDSHAKE = {
    "host": "localhost:8765",
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}
MODELS = (ModelInfo("Qwen/Qwen3-0.6B", created=7), ModelInfo("tiny", created=8))
NAMES = {model.id: model.id for model in MODELS} | {"gpt-5.5": "tiny"}


def resolve(name: str) -> str:
    if name not in NAMES:
        raise model_not_found(name)
    return NAMES[name]


SERVICE = Service(MODELS, resolve)


def get(target: str, method: str = "GET", **headers: str) -> Head:
    return Head(method, target, (("host", "localhost"), *headers.items()))


def handshake(target: str = "/v1/responses", /, **changes: str | None) -> Head:
    headers = HANDSHAKE | {name.replace("_", "-"): value for name, value in changes.items()}
    return Head("GET", target, tuple((name, value) for name, value in headers.items() if value is not None))


async def no_body() -> bytes:
    raise AssertionError("nothing here reads a body")


def respond(head: Head, service: Service, settings: Settings) -> Outcome:
    """The outcome, which must come without waiting: then a client gets it that has already closed its side."""
    routes = Routes(lambda: service, settings)
    try:
        routes(Request(head, "req_1", no_body)).send(None)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    except EngineError as error:
        return error_answer(error)
    raise AssertionError("the route waits")


def answer(request: Head, service: Service = SERVICE) -> tuple[int, Any, dict[str, str]]:
    outcome = respond(request, service, Settings())
    assert isinstance(outcome, Answer)
    return outcome.status, json.loads(outcome.body), dict(outcome.headers)


def error(request: Head, service: Service = SERVICE) -> tuple[int, str]:
    """Status and code, after checking the form every error has."""
    status, body, headers = answer(request, service)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"type", "code", "message", "param"}
    assert (status == 405) == ("allow" in headers)
    assert (status == 426) == (headers.get("upgrade") == "websocket")
    return status, body["error"]["code"]


# --- what can be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_healthz_is_200_even_while_the_server_is_not_ready(method: str) -> None:
    assert answer(get("/healthz", method), Service(MODELS, resolve, "draining")) == (200, {"status": "ok"}, {})


def test_readyz_says_why_not() -> None:
    assert answer(get("/readyz")) == (200, {"status": "ready"}, {})
    assert error(get("/readyz"), Service(MODELS, resolve, "the backend is loading")) == (503, "not_ready")
    assert (
        "the backend is loading"
        in answer(get("/readyz"), Service(MODELS, resolve, "the backend is loading"))[1]["error"]["message"]
    )


def test_models_are_listed() -> None:
    first, second = ({"id": m.id, "object": "model", "created": m.created, "owned_by": "longloop"} for m in MODELS)
    assert answer(get("/v1/models")) == (200, {"object": "list", "data": [first, second]}, {})
    assert answer(get("/v1/models"), Service((), resolve)) == (200, {"object": "list", "data": []}, {})


@pytest.mark.parametrize("path", ["Qwen/Qwen3-0.6B", "Qwen%2FQwen3-0.6B", "Qwen%2fQwen3-0.6B?x=1"])
def test_one_model_is_found_by_its_id_encoded_or_not(path: str) -> None:
    assert answer(get(f"/v1/models/{path}"))[1]["id"] == "Qwen/Qwen3-0.6B"


def test_one_model_is_found_by_any_of_its_names() -> None:
    assert answer(get("/v1/models/gpt-5.5"))[1]["id"] == "tiny"


@pytest.mark.parametrize("path", ["nope", "Qwen", "tiny/", "%FF%00"])
def test_an_unknown_model_is_404(path: str) -> None:
    assert error(get(f"/v1/models/{path}")) == (404, "model_not_found")


def test_an_absolute_target_is_routed_by_its_path() -> None:
    assert answer(get("http://localhost:8765/healthz?x"))[0] == 200
    assert error(get("http://localhost:8765")) == (404, "unknown_url")


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["/", "*", "", "/v1", "/v1/models/", "/healthz/", "//healthz", "/v1/responses/resp_1"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_an_unknown_path_is_404(target: str, method: str) -> None:  # P3
    assert error(get(target, method)) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("DELETE", "/readyz", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/models/tiny", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
        ("HEAD", "/v1/responses", "GET"),
        ("POST", "/v1/responses", "GET"),
    ],
)
def test_another_method_on_a_known_path_is_405_and_says_which_are_allowed(
    method: str, path: str, allow: str
) -> None:  # P3
    assert error(get(path, method)) == (405, "method_not_allowed")
    assert answer(get(path, method))[2]["allow"] == allow


def test_a_plain_get_of_responses_is_426() -> None:  # P3
    # openai/codex#43353, #19821, ranxianglei/billion-context#169: without it clients did not fall back to HTTP at once.
    status, _, headers = answer(get("/v1/responses"))
    assert (status, error(get("/v1/responses"))) == (426, (426, "upgrade_required"))
    assert headers == {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}


@pytest.mark.parametrize("request_", [get("/healthz"), get("/nowhere"), get("/v1/models", "POST"), handshake()])
def test_access_is_decided_before_anything_else(request_: Head) -> None:
    foreign = Head(request_.method, request_.target, (*request_.headers, ("origin", "http://evil.example")))
    assert error(foreign) == (403, "origin_not_allowed")


# --- handshakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "lifecycle"),
    [
        (handshake(), "chain"),
        (handshake("/v1/responses?lifecycle=append"), "append"),
        (handshake(upgrade="WebSocket", content_length="0"), "chain"),
    ],
)
def test_a_sound_handshake_is_admitted(head: Head, lifecycle: LifecycleName) -> None:
    assert respond(head, SERVICE, Settings()) == Admission("local", lifecycle, request_id="req_1")


@pytest.mark.parametrize("target", ["/", "/healthz", "/v1/models", "/v1/realtime", "/v1/responses/x"])
def test_a_handshake_elsewhere_is_404(target: str) -> None:  # P3
    assert error(handshake(target)) == (404, "unknown_url")


@pytest.mark.parametrize("version", ["8", "14", "13, 8", "", None])
def test_a_handshake_of_another_version_is_426(version: str | None) -> None:
    assert error(handshake(sec_websocket_version=version)) == (426, "upgrade_required")
    assert answer(handshake(sec_websocket_version=version))[2]["sec-websocket-version"] == "13"


@pytest.mark.parametrize(
    "changes",
    [
        {"sec_websocket_key": None},
        {"sec_websocket_key": "short"},
        {"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ=="[:-2] + "A="},
        {"upgrade": "websocket, h2c"},
        {"content_length": "3"},
        {"transfer_encoding": "chunked"},
        {"sec_websocket_protocol": "ä"},
        {"sec_websocket_extensions": "ä"},
        {"connection": "upgrade, ä"},
    ],
)
def test_an_unsound_handshake_is_400(changes: dict[str, str | None]) -> None:
    assert error(handshake(**changes)) == (400, "invalid_value")


@pytest.mark.parametrize("name", ["sec-websocket-key", "sec-websocket-version", "upgrade"])
def test_a_handshake_that_says_a_thing_twice_is_refused(name: str) -> None:
    once = handshake()
    twice = Head("GET", once.target, (*once.headers, (name, HANDSHAKE[name])))
    assert error(twice)[0] in (400, 426)


@pytest.mark.parametrize(
    "request_",
    [
        handshake(upgrade=None),
        handshake(connection="keep-alive"),
        handshake(upgrade="h2c"),
        Head("GET", "/v1/responses", handshake().headers, http_version="1.0"),
    ],
)
def test_what_is_no_handshake_at_all_is_a_plain_get(request_: Head) -> None:
    assert error(request_) == (426, "upgrade_required")


def test_a_lifecycle_that_is_not_served_is_refused_before_the_handshake() -> None:
    assert error(handshake("/v1/responses?lifecycle=loop")) == (400, "invalid_value")
    assert error(handshake(openai_beta="responses_websockets=2030-01-01")) == (426, "unsupported_lifecycle")


# --- values ------------------------------------------------------------------------------------------------------


def test_tokens_join_the_lines_of_a_header() -> None:
    head = Head("GET", "/", (("a", " X, y ,,"), ("b", "no"), ("a", "Z")))
    assert head.tokens("a") == ["x", "y", "z"]
    assert head.values("a") == [" X, y ,,", "Z"]
    assert head.tokens("c") == head.values("c") == []


def test_the_query_is_decoded() -> None:
    assert get("/p?a=1&a=%20&b&c=%FF").query == {"a": ["1", " "], "b": [""], "c": ["\ufffd"]}
    assert get("/p").query == get("/p?").query == {}


def test_an_error_answer_carries_the_errors_status_and_body() -> None:
    refused = error_answer(RequestError("no", param="x", code="c", status=418), ("a", "b"))
    assert (refused.status, refused.headers) == (418, (("a", "b"),))
    expected = {"error": {"type": "invalid_request_error", "code": "c", "message": "no", "param": "x"}}
    assert json.loads(refused.body) == expected
