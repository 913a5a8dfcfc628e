"""parameters.py, bodies.py, echo.py: every parameter is honoured, echoed or refused by name, by socket and by POST."""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from engine.bodies import CreateBody, decode_create_body
from engine.errors import RequestError
from engine.frames import Create, decode_frame
from engine.parameters import Includable, Parameters
from engine.request import RunRequest, read_create, read_create_body
from tests.machines import SETTINGS, WEATHER

MISSING = "missing_required_parameter"
Ask = Callable[..., RunRequest]


def by_frame(**fields: Any) -> RunRequest:
    data = json.dumps({"type": "response.create", "input": "hi"} | fields).encode()
    frame = decode_frame(data, max_depth=9)
    assert isinstance(frame, Create)
    return read_create(frame, default_model="toy", settings=SETTINGS)


def by_post(**fields: Any) -> RunRequest:
    body = decode_create_body(json.dumps({"input": "hi"} | fields).encode(), max_depth=9)
    return read_create_body(body, default_model="toy", settings=SETTINGS)


@pytest.fixture(params=[by_frame, by_post])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Both ways to ask."""
    way: Ask = request.param
    return way


def refusal(ask: Ask, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert caught.value.status == 400
    return caught.value


def echo(ask: Ask, **fields: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(msgspec.json.encode(ask(**fields).echo))
    return value


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

# What is echoed as it was given.
ECHOED: dict[str, list[Any]] = {
    "model": ["m"],
    "instructions": ["be good", ""],
    "tools": [[WEATHER | {"description": "d", "strict": None, "x": [1]}], [{"type": "custom", "name": "n"}]],
    "tool_choice": ["none", "auto"],
    "parallel_tool_calls": [True, False],
    "max_tool_calls": [1, 2**53],
    "max_output_tokens": [1, 16, 2**53],
    "temperature": [0.0, 2.0],
    "top_p": [0.0, 1.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "top_logprobs": [0, 20],
    "reasoning": [
        {"effort": effort, "summary": None} for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    ]
    + [{"effort": None, "summary": summary} for summary in (None, "auto", "concise", "detailed")],
    "text": [
        {"format": {"type": "text"}},
        {"format": {"type": "json_object"}, "verbosity": "low"},
        {"format": SCHEMA, "verbosity": "medium"},
        {"format": SCHEMA | {"description": "d"}, "verbosity": "high"},
    ],
    "metadata": [{}, {f"{i:064}": "v" * 512 for i in range(16)}],
    "truncation": ["disabled"],
    "prompt_cache_key": ["k" * 64],
    "prompt_cache_retention": ["in_memory", "24h"],
    "prompt_cache_options": [{"mode": "explicit", "ttl": "12h"}],
    "safety_identifier": ["s" * 128],
    "user": ["u"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ECHOED.items() for value in values])
def test_what_is_honoured_is_echoed(ask: Ask, name: str, value: Any) -> None:
    assert echo(ask, **{name: value})[name] == value


def test_a_function_says_null_for_what_the_client_left_out(ask: Ask) -> None:
    assert echo(ask, tools=[{"type": "function", "name": "f"}])["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]


# What may be said and has one meaning, or none, here: the field, the values it may have, and what the response shows.
PLAIN: list[tuple[str, list[Any], dict[str, Any]]] = [
    (
        "service_tier",
        ["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"],
        {"service_tier": "default"},
    ),
    ("background", [False], {"background": False}),
    ("background_options", [{"completion_window": "8h"}], {}),
    ("prompt_cache_options", [{}], {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}),
    ("reasoning", [{"generate_summary": "auto"}], {"reasoning": {"effort": None, "summary": "auto"}}),
    ("reasoning", [{"context": "all_turns", "mode": "standard"}], {"reasoning": {"effort": None, "summary": None}}),
    ("access_programs", [{}, {"cyber": "standard"}], {}),
    ("image", [{}, {"context_compression": "auto"}, {"context_compression": "disabled"}], {}),
    ("include", [[], list(get_args(Includable))], {}),
    ("context_management", [[], [{"type": "compaction", "compact_threshold": 1000}]], {}),
    ("seed", [0, 2**53], {}),
    ("unknown", [1, {"x": [None]}], {}),
]


def test_a_function_is_echoed_with_every_key_that_clients_look_for(ask: Ask) -> None:
    bare = {"type": "function", "name": "f"}
    (shown,) = echo(ask, tools=[bare])["tools"]
    assert shown == bare | {"description": None, "parameters": None, "strict": None}


@pytest.mark.parametrize(("name", "values", "shown"), PLAIN)
def test_what_means_nothing_here_is_taken(ask: Ask, name: str, values: list[Any], shown: dict[str, Any]) -> None:
    for value in values:
        found = echo(ask, **{name: value})
        assert {key: found[key] for key in shown} == shown
        assert shown or name not in found


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        *(({name: "x"}, name, "unsupported_parameter") for name in ("prompt", "stop", "moderation")),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"stop": ["a"]}, "stop", "unsupported_parameter"),
        ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
        ({"image": {"context_compression": "enabled"}}, "image.context_compression", "invalid_value"),
        ({"access_programs": {"cyber": "daybreak_red"}}, "access_programs.cyber", "invalid_value"),
        (
            {"conversation": "c", "previous_response_id": "r"},
            "previous_response_id",
            "mutually_exclusive_parameters",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(ask: Ask, fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal(ask, **fields)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_is_for_runs_that_end_with_their_step(conversation: Any) -> None:
    assert echo(by_post, conversation=conversation)["conversation"] == {"id": "conv_1"}
    error = refusal(by_frame, conversation=conversation)
    assert (error.param, error.code) == ("conversation", "unsupported_parameter")
    assert "conversation" not in echo(by_post)


@pytest.mark.parametrize("name", ["prompt", "stop", "moderation", "type", "generate", "stream_id", "keep_open"])
def test_the_refusal_says_which_parameter_it_is_as_openai_does(name: str) -> None:
    assert refusal(by_post, **{name: True}).message == f"Unsupported parameter: '{name}'."


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 5}, "model", "invalid_type"),
    ({"input": 5}, "input", "invalid_type"),
    ({"instructions": ["x"]}, "instructions", "invalid_type"),
    ({"previous_response_id": 7}, "previous_response_id", "invalid_type"),
    ({"conversation": 7}, "conversation", "invalid_type"),
    ({"conversation": {}}, "conversation.id", MISSING),
    ({"tools": {}}, "tools", "invalid_type"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
    ({"max_tool_calls": 0}, "max_tool_calls", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 10**30}, "max_output_tokens", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"top_p": -0.1}, "top_p", "invalid_value"),
    ({"top_p": 1.1}, "top_p", "invalid_value"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": -1}, "top_logprobs", "invalid_value"),
    ({"seed": 10**30}, "seed", "invalid_value"),
    ({"seed": -1}, "seed", "invalid_value"),
    ({"seed": 1.5}, "seed", "invalid_type"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort", "invalid_type"),
    ({"reasoning": {"effort": "much"}}, "reasoning.effort", "invalid_value"),
    ({"reasoning": {"summary": "short"}}, "reasoning.summary", "invalid_value"),
    ({"text": "json"}, "text", "invalid_type"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ({"text": {"format": "json"}}, "text.format", "invalid_type"),
    ({"text": {"format": {}}}, "text.format.type", MISSING),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", MISSING),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", MISSING),
    ({"text": {"format": SCHEMA | {"name": "a b"}}}, "text.format.name", "invalid_value"),
    ({"text": {"format": SCHEMA | {"name": "n" * 65}}}, "text.format.name", "invalid_value"),
    ({"include": [1]}, "include[0]", "invalid_type"),
    ({"include": ["response.tokens", "everything"]}, "include[1]", "invalid_value"),
    ({"stream_options": {"include_obfuscation": "yes"}}, "stream_options.include_obfuscation", "invalid_type"),
    ({"store": "yes"}, "store", "invalid_type"),
    ({"background": "yes"}, "background", "invalid_type"),
    ({"background_options": "soonest"}, "background_options", "invalid_type"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "invalid_value"),
    ({"metadata": {"k": "v" * 513}}, "metadata[...]", "invalid_value"),
    ({"metadata": {"k": 5}}, "metadata[...]", "invalid_type"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
    ({"truncation": "much"}, "truncation", "invalid_value"),
    ({"context_management": [{}]}, "context_management[0].type", MISSING),
    ({"context_management": [{"type": "compaction"}]}, "context_management[0].compact_threshold", MISSING),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        "context_management[0].compact_threshold",
        "invalid_value",
    ),
    (
        {"context_management": [{"type": "magic", "compact_threshold": 1000}]},
        "context_management[0].type",
        "invalid_value",
    ),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 1000}] * 2},
        "context_management",
        "invalid_value",
    ),
    ({"prompt_cache_key": "k" * 65}, "prompt_cache_key", "invalid_value"),
    ({"prompt_cache_retention": "1y"}, "prompt_cache_retention", "invalid_value"),
    ({"prompt_cache_options": {"ttl": "1y"}}, "prompt_cache_options.ttl", "invalid_value"),
    ({"prompt_cache_options": {"mode": "?"}}, "prompt_cache_options.mode", "invalid_value"),
    ({"service_tier": "free"}, "service_tier", "invalid_value"),
    ({"safety_identifier": "s" * 129}, "safety_identifier", "invalid_value"),
    ({"user": 5}, "user", "invalid_type"),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG)
def test_what_is_wrong_is_named_by_its_path(ask: Ask, fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal(ask, **fields)
    assert (error.param, error.code) == (param, code)


def test_null_is_absent(ask: Ask) -> None:  # P6
    names = [name for name in Parameters.__struct_fields__ if name != "input"]
    assert echo(ask, **dict.fromkeys(names)) == echo(ask)


def test_no_parameter_is_overlooked() -> None:
    covered = ECHOED.keys() | {name for name, _, _ in PLAIN} | {name for fields, _, _ in WRONG for name in fields}
    assert set(Parameters.__struct_fields__) - covered == set(Parameters.refused)


def test_compact_threshold(ask: Ask) -> None:
    assert ask().compact_threshold is None
    assert ask(context_management=[]).compact_threshold is None
    assert ask(context_management=[{"type": "compaction", "compact_threshold": 1000}]).compact_threshold == 1000


@pytest.mark.parametrize(
    ("fields", "top_logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 3}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
    ],
)
def test_log_probabilities_are_included_on_request(ask: Ask, fields: dict[str, Any], top_logprobs: int | None) -> None:
    assert ask(**fields).top_logprobs == top_logprobs


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, (False, False)),
        ({"include": ["reasoning.encrypted_content"]}, (True, False)),
        ({"reasoning": {"effort": "low"}}, (False, False)),
        ({"reasoning": {"summary": "detailed"}}, (False, True)),
        ({"reasoning": {"generate_summary": "auto"}}, (False, True)),
    ],
)
def test_how_reasoning_is_written(ask: Ask, fields: dict[str, Any], wanted: tuple[bool, bool]) -> None:
    asked = ask(**fields)
    assert (asked.wants_sealed, asked.wants_summary) == wanted


# --- what differs between the two ways ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["type", "generate", "stream_id", "keep_open", "resumable"])
def test_a_post_has_none_of_what_belongs_to_a_socket(name: str) -> None:
    for value in (True, False, "x"):
        error = refusal(by_post, **{name: value})
        assert (error.param, error.code) == (name, "unsupported_parameter")
    by_post(**{name: None})


def test_a_post_can_ask_for_a_stream() -> None:
    data = json.dumps({"input": "hi", "stream": True, "stream_options": {"include_obfuscation": False}}).encode()
    body = decode_create_body(data, max_depth=9)
    assert isinstance(body, CreateBody)
    assert body.stream is True
    read_create_body(body, default_model="toy", settings=SETTINGS)


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_stream_options_need_a_stream(stream: dict[str, Any]) -> None:
    assert refusal(by_post, stream_options={"include_obfuscation": True}, **stream).param == "stream_options"


def test_what_runs_in_the_background_is_posted_and_stored() -> None:
    assert refusal(by_frame, background=True).code == "unsupported_parameter"
    assert refusal(by_post, background=True, store=False).param == "background"
    assert echo(by_post, background=True)["background"] is True


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        ({}, True),
        ({"prompt_cache_options": {"prewarm": False}}, True),
        ({"prompt_cache_options": {"prewarm": True}}, False),
    ],
)
def test_prewarm_is_another_word_for_generate_false(ask: Ask, fields: dict[str, Any], samples: bool) -> None:
    assert ask(**fields).generate is samples


def test_prewarm_overrides_generate() -> None:
    assert not by_frame(generate=True, prompt_cache_options={"prewarm": True}).generate
    assert not by_frame(generate=False, prompt_cache_options={"prewarm": False}).generate


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"input":"\xff"}', b'{"input":"x"} x', b"\xef\xbb\xbf{}"]
)
def test_a_body_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode_create_body(data, max_depth=9)
    assert caught.value.code in ("invalid_json", "invalid_type")


def test_a_body_nested_too_deep_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        decode_create_body(b'{"metadata":' + b"[" * 9 + b"]" * 9 + b"}", max_depth=9)
    assert caught.value.code == "json_too_deep"
