"""items.py: every kind is decoded, encoded without nulls, and says what is wrong with it by its path."""

from typing import Any

import msgspec
import pytest

from engine.content import InputText, text_of
from engine.errors import RequestError
from engine.items import (
    ANSWER_TYPES,
    HOSTED_TYPES,
    Answer,
    Call,
    FunctionCall,
    FunctionCallOutput,
    Hosted,
    ItemReference,
    LocalShellCallOutput,
    McpApprovalRequest,
    Message,
    Reasoning,
    answer_key,
    call_key,
    decode_item,
    decode_items,
    encode_item,
    item_id,
    type_of,
)
from tests.machines import item, json_paths_of_null

MISSING = "missing_required_parameter"
SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:x"}

# One of each kind that appendices A2 and A3 of the wire facts list.
KINDS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "hi"},
    {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "message", "role": "developer", "content": [{"type": "input_image", "image_url": "data:x"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_file", "file_data": "x", "filename": "a.pdf"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "commentary"},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}], "status": "completed"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1", "namespace": "n"},
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    {"type": "local_shell_call", "id": "lsh", "call_id": "c", "status": "completed", "action": {"type": "exec"}},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}, "pending_safety_checks": []},
    {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "q"}, "execution": "client"},
    {"type": "mcp_approval_request", "id": "mcpr", "name": "f", "arguments": "{}", "server_label": "s"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "function_call_output", "call_id": "c", "output": "x", "status": "in_progress", "offset": 7},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    {"type": "local_shell_call_output", "id": "c", "output": "x"},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "", "stderr": ""}], "max_output_length": 9},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "x"},
    {"type": "computer_call_output", "call_id": "c", "output": SCREENSHOT},
    {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function"}], "execution": "client"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"type": "compaction_trigger", "id": "ct_1"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr", "approve": True, "reason": "ok"},
    *({"type": kind, "id": "h_1", "anything": [1, {"x": "y"}]} for kind in sorted(HOSTED_TYPES)),
]


@pytest.mark.parametrize("given", KINDS, ids=lambda given: given["type"])
def test_each_kind_survives_the_round_trip(given: dict[str, Any]) -> None:  # vllm-project/vllm#45273
    decoded = item(**given)
    assert type_of(decoded) == given["type"]
    again = msgspec.json.decode(encode_item(decoded))
    assert {key: again[key] for key in given} == given
    assert json_paths_of_null(again) == []


@pytest.mark.parametrize("given", KINDS, ids=lambda given: given["type"])
def test_null_counts_as_absent_for_optional_fields_and_is_never_written(given: dict[str, Any]) -> None:
    decoded = item(**given)
    if isinstance(decoded, Hosted):
        return
    optional = [name for name in decoded.__struct_fields__ if getattr(decoded, name) is msgspec.UNSET]
    with_nulls = item(**given, **dict.fromkeys(optional))
    assert json_paths_of_null(msgspec.json.decode(encode_item(with_nulls))) == []
    assert encode_item(with_nulls) == encode_item(decoded)


def test_a_part_without_its_optional_fields_is_written_without_them() -> None:
    image = item(type="message", role="user", content=[{"type": "input_image", "file_id": "f", "image_url": None}])
    assert msgspec.json.decode(encode_item(image))["content"] == [{"type": "input_image", "file_id": "f"}]


@pytest.mark.parametrize("given", KINDS, ids=lambda given: given["type"])
def test_unknown_fields_are_ignored(given: dict[str, Any]) -> None:
    assert type_of(item(**given, created_by="x", x_new=[None])) == given["type"]


def test_item_without_type_is_a_message() -> None:  # P114
    assert item(role="user", content="hi") == Message(role="user", content="hi")
    assert item(role="user", content="hi", id="msg_1") == Message(role="user", content="hi", id="msg_1")


def test_item_with_nothing_but_an_id_is_a_reference() -> None:  # P114
    assert item(id="msg_1") == ItemReference(id="msg_1")


WRONG: list[tuple[Any, str | None, str]] = [
    ({"type": "nonsense"}, "type", "invalid_value"),
    ({"type": "configuration_update"}, "type", "unsupported_item"),
    ({"type": "item_reference"}, "id", MISSING),
    ({"type": "compaction"}, "encrypted_content", MISSING),
    ({"type": 5}, "type", "invalid_type"),
    ({"type": None}, "type", "invalid_type"),
    ({"role": None, "id": 5}, "id", "invalid_type"),
    ({"type": "function_call_output", "output": "x"}, "call_id", MISSING),
    ({"type": "function_call_output", "call_id": "c"}, "output", MISSING),
    ({"type": "function_call_output", "call_id": 3, "output": "x"}, "call_id", "invalid_type"),
    ({"type": "function_call_output", "call_id": None, "output": "x"}, "call_id", "invalid_type"),
    ({"type": "function_call_output", "call_id": "c", "output": "x", "status": "wow"}, "status", "invalid_value"),
    ({"type": "function_call_output", "call_id": "c", "output": "x", "offset": -1}, "offset", "invalid_value"),
    ({"type": "function_call_output", "call_id": "c", "output": "x", "offset": 10**30}, "offset", "invalid_value"),
    ({"type": "function_call_output", "call_id": "c", "output": [{"text": "x"}]}, "output[0].type", MISSING),
    ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "content[0].text", MISSING),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "video"}]},
        "content[1].type",
        "invalid_value",
    ),
    ({"type": "message", "role": "robot", "content": "x"}, "role", "invalid_value"),
    ({"type": "message", "role": "user"}, "content", MISSING),
    ({"type": "mcp_approval_response", "approval_request_id": "m", "approve": "yes"}, "approve", "invalid_type"),
    ([], None, "invalid_type"),
    (7, None, "invalid_type"),
]


@pytest.mark.parametrize(("given", "param", "code"), WRONG)
def test_malformed_item_names_its_field(given: Any, param: str | None, code: str) -> None:  # P113
    with pytest.raises(RequestError) as caught:
        decode_item(msgspec.json.encode(given))
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)


@pytest.mark.parametrize(("given", "param", "code"), WRONG)
def test_path_names_the_item_too(given: Any, param: str | None, code: str) -> None:  # P113
    raws = [msgspec.Raw(msgspec.json.encode(one)) for one in ({"role": "user", "content": "ok"}, given)]
    with pytest.raises(RequestError) as caught:
        decode_items(raws)
    assert caught.value.param == (f"input[1].{param}" if param else "input[1]")
    assert caught.value.code == code


def test_cut_json_is_invalid_json_wherever_it_is_cut() -> None:
    whole = msgspec.json.encode(KINDS[5])
    for end in range(len(whole)):
        with pytest.raises(RequestError) as caught:
            decode_item(whole[:end])
        assert caught.value.code in ("invalid_json", "invalid_type", MISSING)
    decode_item(whole)


def test_every_call_kind_says_how_it_is_answered() -> None:
    calls = {type_of(found) for given in KINDS if isinstance(found := item(**given), Call)}
    answers = {type_of(found) for given in KINDS if isinstance(found := item(**given), Answer)}
    assert calls == set(ANSWER_TYPES)
    assert {name for names in ANSWER_TYPES.values() for name in names} == answers


def test_keys_by_which_call_and_answer_find_each_other() -> None:
    keys = {type_of(found): call_key(found) for given in KINDS if isinstance(found := item(**given), Call)}
    assert keys == dict.fromkeys(keys, "c") | {"mcp_approval_request": "mcpr"}
    keys = {type_of(found): answer_key(found) for given in KINDS if isinstance(found := item(**given), Answer)}
    assert keys == dict.fromkeys(keys, "c") | {"mcp_approval_response": "mcpr"}


def test_local_shell_output_names_its_call_by_call_id_or_id() -> None:
    assert answer_key(LocalShellCallOutput(output="", id="i", call_id="c")) == "c"
    assert answer_key(LocalShellCallOutput(output="", id="i")) == "i"
    assert answer_key(LocalShellCallOutput(output="")) == ""
    assert call_key(item(type="local_shell_call", action={})) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Message(role="user", content="x"), None),
        (Message(role="user", content="x", id=None), None),
        (Message(role="user", content="x", id=""), None),
        (Reasoning(id="rs"), "rs"),
        (McpApprovalRequest(id="m", name="f", arguments="", server_label="s"), "m"),
        (Hosted("program", {"id": "p"}), "p"),
        (Hosted("program", {}), None),
        (Hosted("program", {"id": ["not", "an", "id"]}), None),
        (Hosted("program", {"id": 5}), None),
    ],
)
def test_item_id(given: Any, expected: str | None) -> None:
    assert item_id(given) == expected


def test_text_of_takes_every_part_that_has_text() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
        {"type": "summary_text", "text": "d"},
        {"type": "reasoning_text", "text": "e"},
        {"type": "text", "text": "f"},
        {"type": "input_image", "image_url": "-"},
        {"type": "input_file", "file_data": "-"},
        SCREENSHOT,
    ]
    message = item(type="message", role="user", content=parts)
    assert isinstance(message, Message)
    assert text_of(message.content) == "abcdef"
    assert text_of("plain") == "plain"


def test_items_are_immutable_and_comparable() -> None:
    one, same = item(**KINDS[9]), item(**KINDS[9])
    assert one == same
    assert isinstance(one, FunctionCall)
    with pytest.raises(AttributeError):
        one.name = "other"  # type: ignore[misc]


def test_an_optional_null_is_absent_for_whoever_reads_the_item() -> None:
    output = item(type="function_call_output", call_id="c", output="x", status=None, offset=None, id=None)
    assert output == FunctionCallOutput(call_id="c", output="x")
    assert InputText(text="x") == InputText(text="x")
