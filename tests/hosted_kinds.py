"""What tests of the built-in tools share: one call in a response, and its frames."""

import json
from typing import Any

from tests.served import Served


def scenario(name: str, **arguments: Any) -> str:
    """One call, then an answer that quotes what came of it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f'model: test\nsteps:\n  - {{call: {call}}}\n  - text: "It says {{last_output}}"\n'


async def frames_of(served: Served, *definitions: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """A whole response with these tools."""
    async with served.connect() as client:
        await client.create(tools=list(definitions), **fields)
        return await client.step()


def about_first(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of the first output item."""
    return [frame for frame in frames if frame.get("output_index") == 0]


def types_of(frames: list[dict[str, Any]]) -> list[str]:
    """Short."""
    return [frame["type"].removeprefix("response.") for frame in frames]


def item_of(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """The first output item, without its id."""
    item: dict[str, Any] = about_first(frames)[-1]["item"]
    return {name: value for name, value in item.items() if name != "id"}


def text_of(frames: list[dict[str, Any]]) -> str:
    """The last message."""
    text: str = frames[-1]["response"]["output"][-1]["content"][0]["text"]
    return text


def of_openai(frames: list[dict[str, Any]]) -> None:
    """Whether openai-python's own types read the first item's events. It has to be there."""
    # Not at the top: tests that call this are not selected without the package, but they are collected.
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(ResponseStreamEvent)
    for frame in about_first(frames):
        assert adapter.validate_json(json.dumps(frame), strict=True).type == frame["type"]
