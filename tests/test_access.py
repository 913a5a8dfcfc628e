"""Who may connect, as whom, and with which lifecycle."""

from hashlib import sha256

import pytest

from engine.errors import RequestError
from engine.server.access import Admission, admit, check_peer, principal
from engine.server.exchange import Head
from engine.settings import Settings


def head(*headers: tuple[str, str], target: str = "/v1/responses") -> Head:
    return Head("GET", target, headers)


def refusal(request: Head, settings: Settings) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_peer(request, settings)
    return caught.value


# --- Host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8765", "127.0.0.1:1", "127.8.8.8", "[::1]:8765", "[::1]", "box.lan", "box.lan:80"],
)
def test_our_names_pass_with_any_port(host: str) -> None:
    check_peer(head(("host", host)), Settings(host="10.0.0.7", allowed_hosts=["Box.lan"]))


def test_the_bound_host_is_ours() -> None:
    check_peer(head(("host", "10.0.0.7:8765")), Settings(host="10.0.0.7"))
    check_peer(head(("host", "[fd00::7]:8765")), Settings(host="fd00::7"))


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_server_on_every_address_takes_addresses_but_no_names(bound: str) -> None:
    settings = Settings(host=bound)
    check_peer(head(("host", "10.1.2.3:8765")), settings)
    check_peer(head(("host", "[fd00::7]")), settings)
    assert refusal(head(("host", "evil.example")), settings).status == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "localhost.evil.example",
        "localhost@evil.example",
        "localhost:8765:1",
        "localhost:",
        "localhost:123456",
        "localhost:x",
        "localhost localhost",
        "10.1.2.3",
        "[::2]",
        "[::1",
        "[::1%lo]",
        "[localhost]x",
        "locälhost",
        "",
    ],
)
def test_a_foreign_or_malformed_host_is_refused(host: str) -> None:  # P2
    error = refusal(head(("host", host)), Settings())
    assert (error.status, error.code) == (403, "host_not_allowed")
    assert "allowed_hosts" in error.message


def test_a_request_needs_exactly_one_host() -> None:
    assert refusal(head(), Settings()).status == 403
    assert refusal(head(("host", "localhost"), ("host", "localhost")), Settings()).status == 403


def test_the_authority_of_an_absolute_target_wins_over_the_host_header() -> None:
    check_peer(head(("host", "evil.example"), target="http://localhost:8765/healthz"), Settings())
    assert refusal(head(("host", "localhost"), target="http://evil.example/healthz"), Settings()).status == 403


# --- Origin ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://localhost:3000", "HTTP://LOCALHOST:3000", "https://app.example"])
def test_a_listed_origin_passes(origin: str) -> None:
    settings = Settings(allowed_origins=["http://localhost:3000", "https://app.example/"])
    check_peer(head(("host", "localhost"), ("origin", origin)), settings)


@pytest.mark.parametrize("origin", ["http://localhost:3001", "https://localhost:3000", "null", "", "http://localhost"])
def test_any_other_origin_is_refused(origin: str) -> None:  # P2
    settings = Settings(allowed_origins=["http://localhost:3000"])
    error = refusal(head(("host", "localhost"), ("origin", origin)), settings)
    assert (error.status, error.code) == (403, "origin_not_allowed")
    assert "allowed_origins" in error.message


def test_every_origin_header_must_be_listed() -> None:
    settings = Settings(allowed_origins=["http://localhost:3000"])
    request = head(("host", "localhost"), ("origin", "http://localhost:3000"), ("origin", "http://evil.example"))
    assert refusal(request, settings).code == "origin_not_allowed"


# --- principal ---------------------------------------------------------------------------------------------------


def test_the_principal_is_a_hash_of_the_key() -> None:
    name = principal(head(("authorization", "Bearer sk-secret")))
    assert name == sha256(b"sk-secret").hexdigest()[:32]
    assert name == principal(head(("authorization", "bearer   sk-secret ")))
    assert name != principal(head(("authorization", "Bearer sk-other")))


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer  ", "Basic c2s=", "sk-secret"])
def test_without_a_bearer_key_the_principal_is_local(value: str) -> None:
    assert principal(head(("authorization", value))) == "local"
    assert principal(head()) == "local"


# --- lifecycle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "beta", "lifecycle"),
    [
        ("/v1/responses", None, "chain"),
        ("/v1/responses", "", "chain"),
        ("/v1/responses", "something_else=v9", "chain"),
        ("/v1/responses", "responses_websockets=2026-02-06", "chain"),
        ("/v1/responses", "responses_websockets=2026-02-04", "append"),
        ("/v1/responses", "other=1, Responses_WebSockets=2026-02-04", "append"),
        ("/v1/responses", "responses_websockets=2026-02-06,responses_websockets=2026-02-04", "chain"),
        ("/v1/responses", "responses_websockets=2030-01-01,responses_websockets=2026-02-04", "append"),
        ("/v1/responses", "x=1,responses_multi_agent=v1", "inject"),
        ("/v1/responses?lifecycle=append", None, "append"),
        ("/v1/responses?lifecycle=chain", "responses_websockets=2026-02-04", "chain"),
        ("/v1/responses?lifecycle=inject", None, "inject"),
        ("/v1/responses?lifecycle=responses_websockets%3D2026-02-04", None, "append"),
        ("/v1/responses?x=1&lifecycle=append", "responses_websockets=2026-02-06", "append"),
    ],
)
def test_the_lifecycle_is_chosen_by_query_then_header_then_setting(  # P1
    target: str, beta: str | None, lifecycle: str
) -> None:
    headers = [("openai-beta", beta)] if beta is not None else []
    assert admit(head(*headers, target=target), Settings()) == Admission("local", lifecycle, wants_timing=False)


def test_the_setting_is_for_connections_that_name_no_lifecycle() -> None:  # P1
    settings = Settings(lifecycle="append")
    assert admit(head(), settings).lifecycle == "append"
    assert admit(head(("openai-beta", "responses_websockets=2026-02-06")), settings).lifecycle == "chain"


def test_a_beta_header_of_another_date_gets_426() -> None:  # P1
    with pytest.raises(RequestError, match="2030-01-01") as caught:
        admit(head(("openai-beta", "responses_websockets=2030-01-01")), Settings())
    assert (caught.value.status, caught.value.code) == (426, "unsupported_lifecycle")


@pytest.mark.parametrize("query", ["lifecycle=loop", "lifecycle=", "lifecycle", "lifecycle=append&lifecycle=append"])
def test_an_unknown_or_repeated_lifecycle_names_the_parameter(query: str) -> None:
    with pytest.raises(RequestError) as caught:
        admit(head(target=f"/v1/responses?{query}"), Settings())
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_value", "lifecycle")


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("True", True), ("false", False), ("1", False)])
def test_timing_is_wanted_only_when_asked_for(value: str, expected: bool) -> None:
    request = head(("x-responsesapi-include-timing-metrics", value))
    assert admit(request, Settings()).wants_timing is expected
