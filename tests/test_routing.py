"""routing.py: names to routes, and what a route makes of a request."""

from typing import Any

import pytest

from engine.backends.base import Route
from engine.errors import NotFound, RequestError
from engine.routing import RouteTable, apply_route, table_of
from engine.settings import Settings
from tests.machines import request

SCRIPT = {"backend": "script:demo"}


def settings(**models: dict[str, Any]) -> Settings:
    return Settings.model_validate({"models": models})


def test_every_name_leads_to_its_route() -> None:
    table = table_of(settings(big={"aliases": ["gpt-5", "gpt-4o"]}, demo=SCRIPT | {"aliases": ["mini"]}))
    assert [table.resolve(name).id for name in ("big", "gpt-5", "gpt-4o")] == ["big"] * 3
    assert [table.resolve(name).id for name in ("demo", "script:demo", "mini")] == ["script:demo"] * 3
    assert table.resolve(None).id == "big"
    for name in ("", "BIG", "script:big"):
        with pytest.raises(NotFound) as caught:
            table.resolve(name)
        assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


def test_id_of_a_script_says_so() -> None:
    table = table_of(Settings.model_validate({"models": {"a": SCRIPT, "script:b": SCRIPT, "c": {}}}))
    assert [route.id for route in table.routes] == ["script:a", "script:b", "c"]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"a": {"aliases": ["x"]}, "b": {"aliases": ["x"]}}, "The models a and b are both called x."),
        ({"a": {"aliases": ["b"]}, "b": {}}, "The models b and a are both called b."),
        ({"a": SCRIPT, "script:a": SCRIPT}, "The models script:a and script:a are both called script:a."),
        ({}, "The settings name no models."),
    ],
)
def test_shared_names_and_no_models_are_refused(models: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_of(Settings.model_validate({"models": models}))


def test_alias_that_is_also_its_models_name_is_no_fault() -> None:
    assert table_of(settings(a={"aliases": ["a", "a"]})).resolve("a").id == "a"


def test_settings_become_the_route() -> None:
    (route,) = table_of(
        settings(
            a={
                "defaults": {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 5, "effort": "low"},
                "max_output_tokens": 10,
                "max_runs": 3,
            }
        )
    ).routes
    assert route == Route(
        id="a", temperature=0.5, top_p=0.9, max_output_tokens=5, effort="low", output_limit=10, max_runs=3
    )


FULL = Route(id="a", temperature=0.5, top_p=0.9, max_output_tokens=5, effort="low", output_limit=10)


def test_defaults_are_for_what_was_left_out() -> None:
    applied = apply_route(FULL, request())
    spec = applied.spec("r")
    assert (spec.model, spec.temperature, spec.top_p, spec.max_output_tokens) == ("a", 0.5, 0.9, 5)
    assert spec.reasoning_effort == "low"
    echo = applied.echo
    assert (echo.model, echo.temperature, echo.top_p, echo.max_output_tokens) == ("a", 0.5, 0.9, 5)
    assert echo.reasoning == {"effort": "low", "summary": None}


def test_what_was_asked_for_holds() -> None:
    fields = {"temperature": 0, "top_p": 1, "max_output_tokens": 7, "reasoning": {"effort": "high", "summary": "auto"}}
    asked = request(model="a", **fields)
    assert apply_route(FULL, asked) is asked


def test_default_effort_leaves_a_summary_that_was_asked_for() -> None:
    applied = apply_route(FULL, request(reasoning={"summary": "auto"}))
    assert applied.echo.reasoning == {"effort": "low", "summary": "auto"}


def test_applying_it_twice_changes_nothing() -> None:
    applied = apply_route(FULL, request())
    assert apply_route(FULL, applied) is applied


def test_more_output_than_the_limit_is_refused_and_the_limit_is_the_default() -> None:
    route = Route(id="a", output_limit=10)
    assert apply_route(route, request()).echo.max_output_tokens == 10
    assert apply_route(route, request(max_output_tokens=10)).echo.max_output_tokens == 10
    with pytest.raises(RequestError, match="at most 10 output tokens; 11") as caught:
        apply_route(route, request(max_output_tokens=11))
    assert caught.value.param == "max_output_tokens"


def test_table_of_nothing_knows_nothing() -> None:
    with pytest.raises(NotFound):
        RouteTable({}).resolve("a")
