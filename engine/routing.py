"""From the name of a model in a request to what its runs are given and held to."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from engine.backends.base import Route, model_not_found
from engine.errors import RequestError
from engine.request import RunRequest
from engine.settings import Settings

_SCRIPT: Final = "script:"


class RouteTable:
    """Routes by all their names; the first is the default."""

    def __init__(self, routes: Mapping[str, Route], others: Iterable[tuple[str, str]] = ()) -> None:
        """routes: by the names in the settings; others: more names, each with the name in the settings it stands for.

        Raises ValueError when two models share a name.
        """
        self._routes: dict[str, Route] = {}
        for name, route in routes.items():
            self._name(name, route)
            self._name(route.id, route)
        for alias, name in others:
            self._name(alias, routes[name])
        self.routes = tuple(routes.values())

    def _name(self, name: str, route: Route) -> None:
        other = self._routes.setdefault(name, route)
        if other is not route:
            raise ValueError(f"The models {other.id} and {route.id} are both called {name}.")

    def resolve(self, model: str | None) -> Route:
        """The route with this name; None is the default. Raises NotFound."""
        if model is None:
            return self.routes[0]
        if route := self._routes.get(model):
            return route
        raise model_not_found(model)


def table_of(settings: Settings) -> RouteTable:
    """The routes of the models in the settings. Raises ValueError when there are none, or two share a name.

    The id of a model that only plays a script says so.
    """
    if not settings.models:
        raise ValueError("The settings name no models.")
    routes, aliases = dict[str, Route](), list[tuple[str, str]]()
    for name, model in settings.models.items():
        is_script = settings.of_model(name).backend.startswith(_SCRIPT)
        routes[name] = Route(
            id=_SCRIPT + name.removeprefix(_SCRIPT) if is_script else name,
            temperature=model.defaults.temperature,
            top_p=model.defaults.top_p,
            max_output_tokens=model.defaults.max_output_tokens,
            effort=model.defaults.effort,
            output_limit=model.max_output_tokens,
            max_runs=model.max_runs,
        )
        aliases += [(alias, name) for alias in model.aliases]
    return RouteTable(routes, aliases)


def apply_route(route: Route, request: RunRequest) -> RunRequest:
    """The request with the model's id, and its defaults for what was left out. Raises RequestError beyond its limit."""
    echo, changes = request.echo, _echo_changes(route, request)
    limit, asked = route.output_limit, changes.get("max_output_tokens", echo.max_output_tokens)
    if limit is not None and asked is not None and asked > limit:
        raise RequestError(
            f"The model '{route.id}' gives at most {limit} output tokens; {asked} were asked for.",
            param="max_output_tokens",
        )
    if not changes:
        return request
    return msgspec.structs.replace(
        request,
        echo=msgspec.structs.replace(echo, **changes),
        temperature=changes.get("temperature", request.temperature),
        top_p=changes.get("top_p", request.top_p),
    )


def _echo_changes(route: Route, request: RunRequest) -> dict[str, Any]:
    echo, changes = request.echo, dict[str, Any]()
    if echo.model != route.id:
        changes["model"] = route.id
    if request.temperature is None and route.temperature is not None:
        changes["temperature"] = route.temperature
    if request.top_p is None and route.top_p is not None:
        changes["top_p"] = route.top_p
    if echo.max_output_tokens is None:
        default = route.max_output_tokens or route.output_limit
        if default is not None:
            changes["max_output_tokens"] = default
    reasoning = echo.reasoning or {}
    if route.effort is not None and reasoning.get("effort") is None:
        changes["reasoning"] = {"effort": route.effort, "summary": reasoning.get("summary")}
    return changes
