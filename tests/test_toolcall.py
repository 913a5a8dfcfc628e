"""Functions behind tools: each kind is called as it must be, and what it gives becomes an output."""

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pydantic
import pytest
import trio

from engine.content import InputImage, InputText
from engine.toolcall import call_function, no_piece, output_content


class Place(pydantic.BaseModel):
    name: str


async def test_sync_function_runs_in_another_thread():
    assert await call_function(threading.get_ident, (), {}, no_piece) != str(threading.get_ident())


async def test_sync_function_can_be_abandoned():
    release = threading.Event()
    with trio.fail_after(5), trio.move_on_after(0.01) as scope:
        await call_function(release.wait, (), {"timeout": None}, no_piece)
    release.set()
    assert scope.cancelled_caught


async def test_async_function_gets_its_arguments():
    async def join(*parts: str, end: str) -> str:
        return "".join(parts) + end

    assert await call_function(join, ("a", "b"), {"end": "."}, no_piece) == "ab."


async def numbers(n: int) -> AsyncIterator[Any]:
    for i in range(n):
        yield f"{i};" if i else i


def letters() -> Iterator[str]:
    yield "a"
    yield "b"


@pytest.mark.parametrize(("function", "args", "pieces"), [(numbers, [2], ["0", "1;"]), (letters, [], ["a", "b"])])
async def test_generators_give_pieces_and_the_whole(function, args, pieces):
    seen: list[str] = []
    assert await call_function(function, args, {}, seen.append) == "".join(pieces)
    assert seen == pieces


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, "null"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (Place(name="x"), '{"name":"x"}'),
        (InputText(text="x"), [InputText(text="x")]),
        ([InputImage(image_url="u")], [InputImage(image_url="u")]),
        ([], "[]"),
    ],
)
def test_output_content(value, content):
    assert output_content(value) == content


def test_output_that_is_no_json_is_its_str():
    assert "object object" in str(output_content(object()))
