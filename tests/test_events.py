"""events.py: names, fields and bytes of what a run says."""

from typing import Any, get_args

import msgspec

from engine.events import (
    TERMINAL_TYPES,
    Event,
    FinalEvent,
    ResponseDone,
    ResponseObject,
    Terminal,
    encode_event,
)
from engine.item_events import OutputTextDelta

# What Open Responses requires of a response object, and what each key may hold (facts/responses-api.md, 3.2).
REQUIRED: dict[str, tuple[Any, ...]] = {
    "id": (str,), "object": (str,), "created_at": (int,), "completed_at": (int, None), "status": (str,),
    "incomplete_details": (dict, None), "model": (str,), "previous_response_id": (str, None),
    "instructions": (str, None), "output": (list,), "error": (dict, None), "tools": (list,),
    "tool_choice": (str, dict), "truncation": (str,), "parallel_tool_calls": (bool,), "text": (dict,),
    "top_p": (float,), "presence_penalty": (float,), "frequency_penalty": (float,), "top_logprobs": (int,),
    "temperature": (float,), "reasoning": (dict, None), "usage": (dict, None), "max_output_tokens": (int, None),
    "max_tool_calls": (int, None), "store": (bool,), "background": (bool,), "service_tier": (str,),
    "metadata": (dict,), "safety_identifier": (str, None), "prompt_cache_key": (str, None),
}  # fmt: skip


def check_response_object(value: dict[str, Any]) -> None:
    """Whether every required key is there with a value of the right type."""
    for key, types in REQUIRED.items():
        assert key in value, key
        found = value[key]
        assert any(found is None if kind is None else type(found) is kind for kind in types), (key, found)
    assert isinstance(value["text"]["format"]["type"], str)


def test_response_object_has_every_key_that_open_responses_requires() -> None:  # P110
    given = ResponseObject(id="resp_0", created_at=1, status="in_progress", model="toy")
    check_response_object(msgspec.json.decode(msgspec.json.encode(given)))


def test_response_object_leaves_out_extensions_that_say_nothing() -> None:  # P110
    given = ResponseObject(id="resp_0", created_at=1, status="in_progress", model="toy")
    value = msgspec.json.decode(msgspec.json.encode(given))
    assert not {"run_usage", "timing", "skipped_tools"} & value.keys()


def test_response_objects_share_no_mutable_default() -> None:
    one, two = (ResponseObject(id="r", created_at=1, status="completed", model="toy") for _ in "ab")
    one.text["format"] = {"type": "json_object"}
    one.metadata["k"] = "v"
    assert (two.text, two.metadata) == ({"format": {"type": "text"}}, {})


def test_every_event_has_its_own_type() -> None:
    tags = [str(kind.__struct_config__.tag) for kind in get_args(Event)]
    assert len(set(tags)) == len(tags)
    assert all(tag.startswith("response.") for tag in tags)


def test_terminal_events_are_the_pause_and_the_three_ends() -> None:
    assert set(TERMINAL_TYPES) == set(get_args(Terminal)) == {ResponseDone, *get_args(FinalEvent)}


def test_event_starts_with_its_type() -> None:
    event = OutputTextDelta(sequence_number=4, item_id="msg_0", output_index=1, content_index=0, delta="é\n")
    assert msgspec.json.decode(encode_event(event)) == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "item_id": "msg_0",
        "output_index": 1,
        "content_index": 0,
        "delta": "é\n",
        "logprobs": [],
    }
    assert encode_event(event).startswith(b'{"type":"response.output_text.delta"')
