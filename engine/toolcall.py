"""Calls the function behind a tool, of whatever kind it is, and makes what it gives an output."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol

import pydantic_core
import trio

from engine.content import ComputerScreenshot, Content, InputFile, InputImage, InputText, OutputText, Part, PlainText

ToolFunction = Callable[..., Any]
OnPiece = Callable[[str], None]
_PARTS: Final = (InputText, InputImage, InputFile, OutputText, PlainText, ComputerScreenshot)


class InvalidArguments(Exception):
    """The model's arguments do not fit the tool; the message is written for the model."""


class ClientTool(Protocol):
    """A tool that the client runs. `deadline_s` is the longest a call may take; None leaves it to the run's own."""

    name: str
    deadline_s: float | None

    @property
    def definition(self) -> dict[str, Any]:
        """What the server is told of it."""

    async def call(self, arguments: str, on_piece: OnPiece = ...) -> Content:
        """The whole output for what the model wrote; pieces also go to `on_piece` as they come.

        Raises InvalidArguments, and whatever the function raises.
        """


def no_piece(piece: str) -> None:
    """Nobody wants to hear of pieces."""


async def call_function(
    function: ToolFunction,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    on_piece: OnPiece,
    threads: trio.CapacityLimiter | None = None,
) -> Content:
    """The whole output; pieces of a generator also go to `on_piece` as they come.

    Sync functions run in a thread, which is abandoned when the call is cancelled. threads: how many of those there may
    be; None: as many as trio has for everything. Raises whatever the function raises.
    """
    if inspect.isasyncgenfunction(function):
        return await _join_async(function(*args, **keywords), on_piece)
    if inspect.isgeneratorfunction(function):
        return await _join_threaded(function(*args, **keywords), on_piece, threads)
    if inspect.iscoroutinefunction(function):
        return output_content(await function(*args, **keywords))
    bound = partial(function, *args, **keywords)
    return output_content(await trio.to_thread.run_sync(bound, abandon_on_cancel=True, limiter=threads))


def output_content(value: Any) -> Content:
    """What a function returned, as a tool output: text as it is, content parts as they are, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, _PARTS):
        return [value]
    if isinstance(value, list) and value and all(isinstance(part, _PARTS) for part in value):
        parts: list[Part] = value
        return parts
    return pydantic_core.to_json(value, fallback=str).decode()


async def _join_async(pieces: AsyncIterator[Any], on_piece: OnPiece) -> str:
    whole: list[str] = []
    async with aclosing(pieces) as stream:  # type: ignore[type-var]  # an async generator, by isasyncgenfunction
        async for piece in stream:
            _add(piece, whole, on_piece)
    return "".join(whole)


async def _join_threaded(pieces: Iterator[Any], on_piece: OnPiece, threads: trio.CapacityLimiter | None) -> str:
    whole: list[str] = []
    end = object()
    following = partial(trio.to_thread.run_sync, next, pieces, end, abandon_on_cancel=True, limiter=threads)
    while (piece := await following()) is not end:
        _add(piece, whole, on_piece)
    return "".join(whole)


def _add(piece: Any, whole: list[str], on_piece: OnPiece) -> None:
    text = piece if isinstance(piece, str) else pydantic_core.to_json(piece, fallback=str).decode()
    whole.append(text)
    on_piece(text)
