"""Items to the messages of chat completions, and tools and parameters to the fields of the request."""

import json
from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, RunSpec, StepSpec, ToolChoice
from engine.backends.remote.chat_messages import Messages, call_made
from engine.backends.remote.chat_request import DIALECTS, ChatName, run_fields, step_fields
from engine.backends.remote.chat_tools import ChatTools, plain_name
from engine.errors import RequestError
from engine.items import decode_items
from engine.toolspec import Tool, decode_tools
from tests.contract_answers import Json
from tests.contract_server import CHAT_FIELDS, MESSAGE_FIELDS

LOOK = Tool("function", "look", "Looks.", {"type": "object", "properties": {}}, strict=True)
PATCH = Tool("custom", "patch", "Patches.")
INNER = Tool("function", "look", parameters={"type": "object"}, namespace="eye")
TOOLS = ChatTools([LOOK, PATCH, INNER])
USER: Json = {"role": "user", "content": "hi"}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"n": 1}'}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
FILE: Json = {"type": "input_file", "file_id": "f"}
IMAGE: Json = {"type": "input_image", "image_url": "u"}
MADE: Json = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}


def write(*items: Json, open_ids: tuple[str, ...] = (), reasoning: Any = "reasoning") -> list[Json]:
    """The messages as they go out."""
    writer = Messages(TOOLS.name_of, reasoning, open_ids)
    found = decode_items([msgspec.Raw(json.dumps(item).encode()) for item in items])
    messages: list[Json] = msgspec.json.decode(msgspec.json.encode(writer.write(found)))
    for message in messages:
        assert message.keys() <= MESSAGE_FIELDS[message["role"]] | {"reasoning_content"}
    return messages


def text(*parts: str, kind: str = "input_text") -> list[Json]:
    return [{"type": kind, "text": part} for part in parts]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (USER, USER),
        ({"role": "user", "content": text("a", "b")}, {"role": "user", "content": "ab"}),
        ({"role": "developer", "content": "obey"}, {"role": "system", "content": "obey"}),
        ({"role": "system", "content": "obey"}, {"role": "system", "content": "obey"}),
        ({"role": "assistant", "content": text("x", kind="output_text")}, {"role": "assistant", "content": "x"}),
        (
            {"role": "user", "content": [*text("what?"), IMAGE | {"detail": "low"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what?"},
                    {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
                ],
            },
        ),
        (
            {"type": "web_search_call", "id": "ws_1", "action": {"query": "q"}},
            {"role": "system", "content": '[web_search_call]\n{"query": "q"}'},
        ),
    ],
)  # fmt: skip
def test_an_item_is_a_message(item: Json, message: Json) -> None:
    assert write(item) == [message]


def test_what_the_model_made_in_one_turn_is_one_message() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": text("hm", kind="reasoning_text")}
    said = {"role": "assistant", "content": text("I look.", kind="output_text")}
    messages = write(USER, reasoning, said, CALL, CALL | {"call_id": "c2"}, OUTPUT, OUTPUT | {"call_id": "c2"}, said)
    assert messages == [
        USER,
        {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": [MADE, MADE | {"id": "c2"}]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
        {"role": "tool", "content": "seen", "tool_call_id": "c2"},
        {"role": "assistant", "content": "I look."},
    ]


def test_thoughts_alone_are_no_message_and_may_have_no_field() -> None:
    reasoning = {"type": "reasoning", "summary": text("short", kind="summary_text")}
    assert write(reasoning, USER) == [USER]
    assert write(reasoning, CALL, reasoning=None)[0] == {"role": "assistant", "content": None, "tool_calls": [MADE]}
    assert write(reasoning, CALL, reasoning="reasoning_content")[0]["reasoning_content"] == "short"


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ({"type": "custom_tool_call", "name": "patch", "input": "+a"}, "patch", {"input": "+a"}),
        ({"type": "function_call", "name": "look", "namespace": "eye", "arguments": "{}"}, "eye_look", {}),
        ({"type": "function_call", "name": "gone.tool", "arguments": "{}"}, "gone_tool", {}),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, "local_shell", {"command": ["ls"]}),
        ({"type": "function_call", "name": "look", "arguments": "no json"}, "look", {"malformed": "no json"}),
        ({"type": "function_call", "name": "look", "arguments": ""}, "look", {}),
    ],
)
def test_a_call_of_any_kind_is_a_call_of_a_function(call: Json, name: str, arguments: Json) -> None:
    (message,) = write(call | {"call_id": "c1"})
    (made,) = message["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (name, arguments)


def test_outputs_of_sampled_calls_go_to_the_services_own_ids_in_order() -> None:
    outputs = [OUTPUT | {"call_id": "call_ours_1"}, OUTPUT | {"call_id": "call_ours_2"}]
    messages = write(*outputs, CALL, OUTPUT, open_ids=("theirs_1", "theirs_2"))
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ["theirs_1", "theirs_2", "c1"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [FILE]}, "[1].content[0]"),
        (
            {"role": "user", "content": [IMAGE, FILE]},
            "[1].content[1]",
        ),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "[1].content[0]"),
        ({"role": "developer", "content": [IMAGE]}, "[1].content[0]"),
        (OUTPUT | {"output": [IMAGE]}, "[1].output[0]"),
        (
            {"type": "computer_call_output", "call_id": "c1", "output": {"type": "computer_screenshot"}},
            "[1].output",
        ),
    ],
)
def test_content_that_no_message_can_hold_is_named(item: Json, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        write(USER, item)
    assert refused.value.param == param


def test_malformed_arguments_stay_json() -> None:
    assert call_made("c", "n", "[1]").function.arguments == '{"malformed":"[1]"}'
    assert call_made("c", "n", ' {"a": 1} ').function.arguments == ' {"a": 1} '


# --- tools --------------------------------------------------------------------------------------------------------


def test_tools_are_functions() -> None:
    fields = TOOLS.fields(ToolChoice())
    assert fields["tool_choice"] == "auto"
    assert [tool["type"] for tool in fields["tools"]] == ["function"] * 3
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["look", "patch", "eye_look"]
    assert fields["tools"][0]["function"] | {"parameters": None} == {
        "name": "look",
        "description": "Looks.",
        "parameters": None,
        "strict": True,
    }
    assert "strict" not in fields["tools"][1]["function"]
    assert fields["tools"][1]["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize(
    ("choice", "said", "names"),
    [
        (ToolChoice(), "auto", ["look", "patch", "eye_look"]),
        (ToolChoice("none"), "none", ["look", "patch", "eye_look"]),
        (ToolChoice("required"), "required", ["look", "patch", "eye_look"]),
        (ToolChoice("auto", frozenset({"patch", "eye.look"})), "auto", ["patch", "eye_look"]),
        (ToolChoice("auto", frozenset()), "none", ["look", "patch", "eye_look"]),
        (
            ToolChoice("required", frozenset({"patch"}), is_named=True),
            {"type": "function", "function": {"name": "patch"}},
            ["look", "patch", "eye_look"],
        ),
        (ToolChoice("required", frozenset({"patch", "eye.look"})), "required", ["patch", "eye_look"]),
    ],
)
def test_a_choice_says_which_may_be_called(choice: ToolChoice, said: Any, names: list[str]) -> None:
    fields = TOOLS.fields(choice)
    assert fields["tool_choice"] == said
    assert [tool["function"]["name"] for tool in fields["tools"]] == names


def test_a_service_that_cannot_be_told_a_name_is_offered_that_tool_alone() -> None:
    fields = TOOLS.fields(ToolChoice("required", frozenset({"patch"}), is_named=True), names_tool=False)
    assert fields["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["patch"]


def test_without_tools_nothing_is_said_of_them() -> None:
    assert ChatTools([]).fields(ToolChoice("none")) == {}


def test_names_that_meet_are_numbered() -> None:
    same = [Tool("function", name, parameters={}) for name in ("a.b", "a_b", "a b", "x" * 70, "x" * 71)]
    names = [tool["function"]["name"] for tool in ChatTools(same).fields(ToolChoice())["tools"]]
    assert names == ["a_b", "a_b_2", "a_b_3", "x" * 64, "x" * 62 + "_2"]
    assert ChatTools(same).start_of("a_b_2") == CallStart("function_call", "a_b")
    assert plain_name("é") == "_" and plain_name("") == "_"


# --- parameters -----------------------------------------------------------------------------------------------------

SCHEMA: Json = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}


def asked(name: ChatName = "cerebras", step: StepSpec | None = None, **fields: Any) -> Json:
    """All fields of a request but its messages."""
    spec = RunSpec(response_id="resp_1", model="m", **fields)
    dialect = DIALECTS[name]
    found = run_fields(spec, dialect) | step_fields(spec, step or StepSpec(), ChatTools(spec.tools), dialect)
    assert name != "cerebras" or found.keys() <= CHAT_FIELDS
    return found


def test_what_a_run_does_not_name_is_not_sent() -> None:
    usual = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert asked("vllm") == usual
    assert asked("cerebras") == usual | {"prompt_cache_key": "resp_1"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"temperature": 0.0, "top_p": 0.5, "seed": 0}, {"temperature": 0.0, "top_p": 0.5, "seed": 0}),
        ({"presence_penalty": 1.0, "frequency_penalty": -1.0}, {"presence_penalty": 1.0, "frequency_penalty": -1.0}),
        ({"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "xhigh"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "medium"}, {"reasoning_effort": "medium"}),
        ({"text_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        (
            {"text_format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"step": StepSpec(max_tokens=7)}, {"max_completion_tokens": 7}),
        ({"step": StepSpec(top_logprobs=0)}, {"logprobs": True, "top_logprobs": 0}),
        ({"tools": [LOOK], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ],
)
def test_what_it_names_is(given: Json, sent: Json) -> None:
    assert asked(**given).items() >= sent.items()


def test_dialects_have_their_own_words() -> None:
    assert asked("llamacpp", StepSpec(max_tokens=7))["max_tokens"] == 7
    assert asked("openai", reasoning_effort="xhigh")["reasoning_effort"] == "xhigh"
    assert "parallel_tool_calls" not in asked(parallel_tool_calls=False)


def test_a_summary_is_free_text() -> None:
    summary = asked(step=StepSpec(is_summary=True), tools=[LOOK], text_format=SCHEMA, parallel_tool_calls=False)
    assert summary["tool_choice"] == "none" and summary["tools"]
    assert not summary.keys() & {"response_format", "parallel_tool_calls"}


def test_every_kind_of_tool_can_be_offered() -> None:
    kinds = ["local_shell", "shell", "apply_patch", "computer", "tool_search"]
    tools, _ = decode_tools([msgspec.Raw(json.dumps({"type": kind}).encode()) for kind in kinds])
    for kind, tool in zip(kinds, asked(tools=tools)["tools"], strict=True):
        assert tool["function"]["name"] == kind and tool["function"]["parameters"]["type"] == "object"
