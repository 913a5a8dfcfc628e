"""frames.py of the engine: what clients send, and how they learn what is wrong with it."""

import json
from typing import Any

import msgspec
import pytest

from engine.backends.base import ToolChoice
from engine.errors import RequestError
from engine.frames import Append, Cancel, Create, FrameError, Processed, Resume, decode_frame, decode_tool_choice
from engine.toolspec import decode_tools

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
        {"verbosity": "low"},
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
        ({"type": "response.resume", "response_id": "r", "starting_after": -2}, "starting_after", "invalid_type"),
        ({"type": "response.resume", "response_id": "r", "starting_after": 10**30}, "starting_after", "invalid_type"),
        ({"type": "response.cancel", "response_id": 7}, "response_id", "invalid_type"),
        ({"type": "response.create", "temperature": 2.1}, "temperature", "invalid_type"),
        ({"type": "response.create", "top_p": -0.1}, "top_p", "invalid_type"),
        ({"type": "response.create", "presence_penalty": 3}, "presence_penalty", "invalid_type"),
        ({"type": "response.create", "frequency_penalty": -3}, "frequency_penalty", "invalid_type"),
        ({"type": "response.create", "top_logprobs": 21}, "top_logprobs", "invalid_type"),
        ({"type": "response.create", "max_output_tokens": 0}, "max_output_tokens", "invalid_type"),
        ({"type": "response.create", "max_output_tokens": 10**30}, "max_output_tokens", "invalid_type"),
        ({"type": "response.create", "max_tool_calls": 0}, "max_tool_calls", "invalid_type"),
        ({"type": "response.create", "seed": 10**30}, "seed", "invalid_type"),
        ({"type": "response.create", "seed": -1}, "seed", "invalid_type"),
        ({"type": "response.create", "seed": 1.5}, "seed", "invalid_type"),
        ({"type": "response.create", "reasoning": {"effort": 5}}, "reasoning.effort", "invalid_type"),
        ({"type": "response.create", "truncation": "much"}, "truncation", "invalid_type"),
        ({"type": "response.create", "include": [1]}, "include[0]", "invalid_type"),
        ({"type": "response.create", "metadata": {"k" * 65: "v"}}, "metadata", "invalid_type"),
        ({"type": "response.create", "metadata": {"k": "v" * 513}}, "metadata[...]", "invalid_type"),
        ({"type": "response.create", "metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_type"),
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


# --- tool_choice -------------------------------------------------------------------------------------------------

TOOLS, _ = decode_tools(
    [
        msgspec.Raw(json.dumps(tool).encode())
        for tool in (
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "c"},
            {"type": "local_shell"},
            {"type": "computer_use_preview"},
        )
    ]
)


def choose(value: Any, tools: Any = TOOLS) -> ToolChoice:
    return decode_tool_choice(msgspec.Raw(json.dumps(value).encode()), tools)


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", frozenset({"f"}), is_named=True)),
        ({"type": "custom", "name": "c"}, ToolChoice("required", frozenset({"c"}), is_named=True)),
        ({"type": "local_shell"}, ToolChoice("required", frozenset({"local_shell"}), is_named=True)),
        ({"type": "computer_use_preview"}, ToolChoice("required", frozenset({"computer"}), is_named=True)),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}, {"type": "local_shell"}],
            },
            ToolChoice("auto", frozenset({"f", "local_shell"})),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}]},
            ToolChoice("required", frozenset({"c"})),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, ToolChoice("auto", frozenset())),
    ],
)
def test_tool_choice(value: Any, choice: ToolChoice) -> None:
    assert choose(value) == choice


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("sometimes", "tool_choice"),
        (5, "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": "function", "name": "g"}, "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "web_search"}, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "never", "tools": []}, "tool_choice.mode"),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}, {"name": "g"}]},
            "tool_choice.tools[1].name",
        ),
        ({"type": "allowed_tools", "tools": [{}]}, "tool_choice.tools[0].name"),
        ({"type": "allowed_tools", "tools": [5]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "tool_choice.tools"),
    ],
)
def test_tool_choice_that_cannot_be_kept_is_refused_by_its_path(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        choose(value)
    assert caught.value.param == param


def test_required_needs_a_tool() -> None:
    with pytest.raises(RequestError) as caught:
        choose("required", [])
    assert caught.value.param == "tool_choice"
