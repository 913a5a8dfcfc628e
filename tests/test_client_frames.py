"""frames.py of the engine: what clients send, and how they learn what is wrong with it."""

import json
from typing import Any

import pytest

from engine.frames import Append, Cancel, Create, FrameError, Processed, Resume, decode_frame
from engine.parameters import Text

MISSING = "missing_required_parameter"
DEPTH = 16


def decode(value: Any) -> Any:
    return decode_frame(value if isinstance(value, bytes) else json.dumps(value).encode(), max_depth=DEPTH)


def refusal(value: Any) -> FrameError:
    with pytest.raises(FrameError) as caught:
        decode(value)
    return caught.value


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"type": "response.create"}, Create),
        ({"type": "response.append", "input": []}, Append),
        ({"type": "response.cancel"}, Cancel),
        ({"type": "response.resume", "response_id": "r"}, Resume),
        ({"type": "response.processed", "response_id": "r"}, Processed),
    ],
)
def test_each_frame_is_decoded_on_its_lane(frame: dict[str, Any], kind: type) -> None:
    assert isinstance(decode(frame), kind)
    assert decode(frame).stream_id is None
    assert decode(frame | {"stream_id": None}).stream_id is None
    assert decode(frame | {"stream_id": "A-b_c.9", "unknown": {"x": 1}}).stream_id == "A-b_c.9"
    assert isinstance(decode(dict(reversed(frame.items()))), kind)  # some SDKs send `type` last


def test_codex_create_is_accepted() -> None:  # P6
    frame = decode(
        {
            "type": "response.create",
            "model": "gpt",
            "instructions": "be good",
            "input": [],
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": None,
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-turn-metadata": "{}"},
        }
    )
    assert (frame.model, frame.instructions, frame.reasoning, frame.text) == (
        "gpt",
        "be good",
        None,
        Text(verbosity="low"),
    )


def test_null_counts_as_absent_for_every_optional_field_of_create() -> None:  # P6
    names = [name for name in Create.__struct_fields__ if name != "tool_choice"]
    frame = decode({"type": "response.create", "tool_choice": None} | dict.fromkeys(names))
    assert all(getattr(frame, name) is None for name in names)


@pytest.mark.parametrize(
    ("frame", "param", "code"),
    [
        ({"type": "response.nonsense"}, "type", "unknown_event_type"),
        ({"type": "response.done"}, "type", "unknown_event_type"),
        ({}, "type", MISSING),
        ({"type": 5}, "type", "invalid_type"),
        ({"type": ["response.create"]}, "type", "invalid_type"),
        ({"type": "response.append"}, "input", MISSING),
        ({"type": "response.append", "input": None}, "input", "invalid_type"),
        ({"type": "response.append", "input": 7}, "input", "invalid_type"),
        ({"type": "response.resume"}, "response_id", MISSING),
        ({"type": "response.resume", "response_id": "r", "starting_after": -2}, "starting_after", "invalid_value"),
        ({"type": "response.resume", "response_id": "r", "starting_after": 10**30}, "starting_after", "invalid_value"),
        ({"type": "response.cancel", "response_id": 7}, "response_id", "invalid_type"),
        ([], None, "invalid_type"),
        (b"", None, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b'{"type":"response.create"} x', None, "invalid_json"),
        (b'\xef\xbb\xbf{"type":"response.create"}', None, "invalid_json"),
        (b'{"type":"response.create","input":"\xff"}', None, "invalid_json"),
        (b'{"type":"response.create","input":"\\ud800"}', None, "invalid_json"),
        (b'{"type":"response.create","temperature":NaN}', None, "invalid_json"),
    ],
)
def test_malformed_frame_names_its_field(frame: Any, param: str | None, code: str) -> None:  # P5
    error = refusal(frame)
    assert (error.param, error.code, error.status) == (param, code, 400)


def test_frame_cut_anywhere_is_refused() -> None:
    whole = json.dumps({"type": "response.append", "input": [{"a": '\\u00e9"'}], "stream_id": "é"[:0] + "a"}).encode()
    decode(whole)
    for end in range(len(whole)):
        refusal(whole[:end])


@pytest.mark.parametrize("stream_id", ["", "a b", "a/b", "é", "a\n", "x" * 257, 5, [], {}, True])
def test_invalid_stream_id_is_refused_with_the_code_clients_know(stream_id: Any) -> None:  # P8
    error = refusal({"type": "response.create", "stream_id": stream_id})
    assert (error.code, error.param, error.stream_id) == ("invalid_stream_id", "stream_id", None)
    assert error.message == (
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain "
        "letters, numbers, underscores, hyphens, and periods."
    )


def test_longest_stream_id_is_accepted() -> None:
    assert decode({"type": "response.cancel", "stream_id": "x" * 256}).stream_id == "x" * 256


@pytest.mark.parametrize(
    "rest", [{"type": "response.create", "temperature": 9}, {"type": "nonsense"}, {"type": 5}, {}, {"type": None}]
)
def test_refusal_knows_the_lane_it_belongs_to(rest: dict[str, Any]) -> None:
    assert refusal({"stream_id": "a"} | rest).stream_id == "a"


# --- depth -------------------------------------------------------------------------------------------------------


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    inner = opening * (depth - 1) + closing * (depth - 1)
    return b'{"type":"response.processed","x":' + (inner.encode() or b"1") + b"}"


def test_json_up_to_max_json_depth_is_accepted() -> None:
    decode(nested(DEPTH))
    decode(nested(2))


@pytest.mark.parametrize("depth", [DEPTH + 1, 1000, 1_000_000])
def test_deeper_json_is_refused(depth: int) -> None:
    assert refusal(nested(depth)).code == "json_too_deep"
    assert refusal(nested(depth, '{"a":[', "]}")).code == "json_too_deep"


def test_brackets_in_strings_and_beside_each_other_are_not_depth() -> None:
    decode(b'{"type":"response.processed","x":"' + b"[{" * 1000 + b'"}')
    decode(b'{"type":"response.processed","x":"\\"' + b"[" * 1000 + b'\\\\"}')
    decode(b'{"type":"response.processed","x":[' + b",".join([b"[]"] * 1000) + b"]}")


def test_parser_that_runs_out_of_stack_is_a_refusal() -> None:
    with pytest.raises(FrameError) as caught:
        decode_frame(nested(200_000), max_depth=1_000_000)
    assert caught.value.code == "json_too_deep"
