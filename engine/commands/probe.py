"""`longloop models --probe`: what a service really does of what this project takes it to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import trio

from engine.backends.pretrained import DEFAULT_MODEL
from engine.backends.remote.chat_request import ChatName
from engine.backends.remote.opening import link_of
from engine.backends.remote.probe import Point, Probe
from engine.backends.remote.services import SERVICES, NotUsable, base_url_of
from engine.backends.remote.trial import find_models
from engine.commands.serve import UsageError
from engine.settings import Settings


def probe_command(settings: Settings) -> int:
    """Look at the service that `settings.backend` names, and say of each point whether it is met. The exit code.

    Raises UsageError for a service that cannot be asked at all.
    """
    if settings.backend not in SERVICES:
        raise UsageError(f"--probe takes one of {', '.join(SERVICES)}, not '{settings.backend}'.")
    points: list[Point] = []

    def report(point: Point) -> None:
        points.append(point)
        print(f"{'yes' if point.is_met else 'NO':>3}  {point.name}{': ' if point.told else ''}{point.told}", flush=True)

    try:
        with _quiet():  # what it met is told here
            trio.run(_probe, settings, report)
    except NotUsable as error:
        raise UsageError(error.message) from error
    missed = sum(not point.is_met for point in points)
    print(f"{len(points) - missed} of {len(points)} points are as the project takes them to be.")
    return 1 if missed else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing below an error of what services do."""
    log = logging.getLogger("engine.backends.remote")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


async def _probe(settings: Settings, report: Callable[[Point], None]) -> None:
    service = SERVICES[settings.backend]
    url = base_url_of(service, settings.base_url)
    link = link_of(settings, service, url)
    line = link.new_line()
    try:
        found = await find_models(line, service, url, settings.model, is_chosen=settings.model != DEFAULT_MODEL)
    finally:
        await line.aclose()
    print(f"{service.title} at {url}, model {found.models[0].id}")
    await Probe(link, cast(ChatName, settings.backend), found.models[0].id, report).run()
