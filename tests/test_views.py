"""views.py: every text in an item is looked at, and nothing that is none."""

import json
from typing import Any

import msgspec
import pytest

from engine.items import Item, decode_item
from engine.safety.views import argument_texts, strings_of, texts_of


def item(**fields: Any) -> Item:
    return decode_item(msgspec.json.encode(fields))


CALL = {"call_id": "c", "name": "n"}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (item(role="user", content="hi"), [("input", "hi")]),
        (
            item(role="user", content=[{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]),
            [("input", "a")],
        ),
        (item(role="user", content=[{"type": "input_image", "image_url": "u"}]), []),
        (
            item(type="reasoning", summary=[{"type": "summary_text", "text": "s"}], encrypted_content="x"),
            [("input", "s")],
        ),
        (
            item(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "r"}]),
            [("input", "r")],
        ),
        (item(type="function_call", arguments='{"a": 1}', **CALL), [("input", '{"a": 1}')]),
        (item(type="function_call", arguments=r'"\u0061"', **CALL), [("input", r'"\u0061"'), ("input", '"a"')]),
        (item(type="custom_tool_call", input="free", **CALL), [("input", "free")]),
        (
            item(type="shell_call", call_id="c", action={"commands": ["ls", "rm"]}),
            [("input", "commands"), ("input", "ls"), ("input", "rm")],
        ),
        (
            item(type="apply_patch_call", call_id="c", operation={"type": "delete_file", "path": "p"}),
            [("input", text) for text in ("type", "delete_file", "path", "p")],
        ),
        (item(type="computer_call", call_id="c", actions=[{"text": "typed"}]), [("input", "text"), ("input", "typed")]),
        (item(type="tool_search_call", arguments={"q": "x"}), [("input", "q"), ("input", "x")]),
        (item(type="function_call_output", call_id="c", output="out"), [("tool_output", "out")]),
        (
            item(
                type="computer_call_output", call_id="c", output={"type": "computer_screenshot", "image_url": "data:x"}
            ),
            [],
        ),
        (item(type="web_search_call", id="ws"), [("input", text) for text in ("type", "web_search_call", "id", "ws")]),
        (item(type="item_reference", id="x"), []),
    ],
)
def test_the_texts_of_an_item(given: Item, texts: list[tuple[str, str]]) -> None:
    assert list(texts_of(given)) == texts


@pytest.mark.parametrize(
    "given",
    [
        item(type="shell_call_output", call_id="c", output=[{"stdout": "needle", "stderr": ""}]),
        item(type="local_shell_call_output", call_id="c", output="needle"),
        item(type="apply_patch_call_output", call_id="c", status="failed", output="needle"),
        item(type="tool_search_output", call_id="c", tools=[{"name": "needle"}]),
        item(type="mcp_approval_response", approval_request_id="a", approve=True, reason="needle"),
    ],
)
def test_what_a_tool_says_is_tool_output_whatever_its_kind(given: Item) -> None:
    assert ("tool_output", "needle") in list(texts_of(given))


@pytest.mark.parametrize("text", ["plain", 'with "quotes"', "tab\tand\nline", "\\", "😀é", "\u2028", "a\\u0041"])
def test_arguments_are_unescaped_as_json_is(text: str) -> None:
    for written in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert argument_texts(written)[-1] == f'"{text}"'
    escaped = "".join(f"\\u{ord(char):04x}" for char in text if ord(char) < 0x10000)
    assert argument_texts(f'"{escaped}"')[-1] == '"' + "".join(char for char in text if ord(char) < 0x10000) + '"'


@pytest.mark.parametrize("arguments", ['{"a": "b"}', "", "no json"])
def test_arguments_without_an_escape_are_looked_at_once(arguments: str) -> None:
    assert argument_texts(arguments) == [arguments]


@pytest.mark.parametrize("arguments", ["\\", r'{"a": "\u00', r"\ud83d alone", r"\uDEAD"])
def test_arguments_that_are_no_json_are_still_read(arguments: str) -> None:
    assert argument_texts(arguments)[0] == arguments
    argument_texts(arguments)[1].encode()


def test_strings_are_found_at_any_depth_in_order() -> None:
    value: Any = ["a", {"k": ["b", 1, None, {"l": "c"}]}, True]
    assert list(strings_of(value)) == ["a", "k", "b", "l", "c"]
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    assert list(strings_of(deep)) == ["end"]
