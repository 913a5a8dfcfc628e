"""outgoing.py: what a reader gets of an event, by what it asked for."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Event, encode_event
from engine.item_events import OutputTextDelta, OutputTextDone, ReasoningTextDelta, ReasoningTextDone
from engine.outgoing import EventForm, encode_frame, type_of_event, with_lane
from engine.settings import EventNames
from tests.kept import open_kept
from tests.served import open_served

PLACE: dict[str, Any] = {"item_id": "msg_0", "output_index": 1, "content_index": 0}

PADDED = EventForm(is_padded=True)


def delta(text: str, number: int = 4) -> OutputTextDelta:
    return OutputTextDelta(sequence_number=number, delta=text, **PLACE)


@pytest.mark.parametrize("lane", ["a", "A-b_c.9"])
def test_named_lane_is_echoed(lane: str) -> None:
    frame = encode_frame({"type": "error", "error": {"code": "x"}})
    assert msgspec.json.decode(with_lane(frame, lane)) == msgspec.json.decode(frame) | {"stream_id": lane}


def test_default_lane_is_never_echoed() -> None:
    frame = encode_frame({"type": "error"})
    assert with_lane(frame, None) == frame


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "openai", "open_responses"),
    [
        (ReasoningTextDelta(sequence_number=1, delta="x", **PLACE), "reasoning_text.delta", "reasoning.delta"),
        (ReasoningTextDone(sequence_number=1, text="x", **PLACE), "reasoning_text.done", "reasoning.done"),
        (delta("response.reasoning_text."), "output_text.delta", "output_text.delta"),
    ],
)
def test_raw_reasoning_has_two_names(event: Event, openai: str, open_responses: str) -> None:
    names: list[tuple[EventNames, str]] = [("openai", openai), ("open_responses", open_responses)]
    for kind, name in names:
        data = EventForm(names=kind).encode(event)
        assert type_of_event(data) == f"response.{name}"
        assert msgspec.json.decode(data) == msgspec.json.decode(encode_event(event)) | {"type": f"response.{name}"}


# --- padding -----------------------------------------------------------------------------------------------------


@given(text=st.text(st.characters(exclude_categories=["Cs"])), number=st.integers(0, 1 << 20))
def test_a_padded_delta_is_whole_blocks_and_says_the_same(text: str, number: int) -> None:
    event = delta(text, number)
    data = PADDED.encode(event)
    assert len(data) % 64 == 0
    value = msgspec.json.decode(data)
    assert isinstance(value.pop("obfuscation"), str)
    assert value == msgspec.json.decode(encode_event(event))


def test_short_pieces_cannot_be_told_apart_by_their_length() -> None:
    assert len({len(PADDED.encode(delta("x" * length))) for length in range(1, 12)}) == 1


def test_padding_is_the_same_in_a_replay_and_another_for_another_event() -> None:
    one, same, other = (PADDED.encode(delta("x", number)) for number in (4, 4, 5))
    assert one == same
    assert msgspec.json.decode(one)["obfuscation"] != msgspec.json.decode(other)["obfuscation"]


def test_only_deltas_are_padded() -> None:
    event = OutputTextDone(sequence_number=1, text="x", **PLACE)
    assert PADDED.encode(event) == encode_event(event)


# --- over the wire -----------------------------------------------------------------------------------------------

STEPS = "model: test\nsteps: [{reasoning: Hm., text: Hello.}]"


@pytest.mark.parametrize(
    ("options", "is_padded"),
    [
        ({}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_obfuscation": False}}, False),
        ({"stream_options": {"include_obfuscation": True}}, True),
    ],
)
async def test_deltas_are_padded_only_for_who_asks(options: dict[str, Any], is_padded: bool) -> None:  # P59
    async with open_served(STEPS) as server, server.connect() as client:
        await client.create(**options)
        deltas = [frame for frame in await client.step() if "delta" in frame]
        assert deltas
        assert all(("obfuscation" in frame) is is_padded for frame in deltas)


async def test_the_setting_event_names_reaches_the_wire() -> None:  # P59
    async with open_served(STEPS, event_names="open_responses") as server, server.connect() as client:
        await client.create()
        types = {frame["type"] for frame in await client.step()}
        assert {"response.reasoning.delta", "response.reasoning.done"} <= types
        assert not any("reasoning_text" in type_ for type_ in types)


async def test_a_posted_stream_is_padded_and_named_in_the_same_way() -> None:
    asked = {"input": "go", "stream": True, "background": True, "stream_options": {"include_obfuscation": True}}
    async with open_kept(STEPS, event_names="open_responses") as server:
        http = server.http()
        async with http.stream("POST", "/v1/responses", **asked) as stream:
            events = await stream.rest()
        assert all(("obfuscation" in event) == ("delta" in event) for event in events)
        assert "response.reasoning.delta" in {event["type"] for event in events}
        path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
        async with http.stream("GET", path) as stream:
            assert not any("obfuscation" in event for event in await stream.rest())
        async with http.stream("GET", f"{path}&include_obfuscation=true") as stream:
            assert await stream.rest() == events
