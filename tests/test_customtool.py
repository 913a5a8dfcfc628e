"""Custom tools: functions that get the model's text as it is."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.customtool import CustomTool, custom_tool


def run_sql(query: str, limit: int = 10) -> str:
    """Query the database.

    Args:
        query: one SELECT statement of SQLite
    """
    return f"{query} {limit}"


def test_definition_says_what_the_function_says():
    assert CustomTool(run_sql).definition == {
        "type": "custom",
        "name": "run_sql",
        "description": "Query the database.\n\nInput: one SELECT statement of SQLite",
    }


@pytest.mark.parametrize(("syntax", "text"), [("lark", 'start: "a"+'), ("regex", "a+")])
def test_grammar_is_the_definitions_format(syntax, text):
    tool = CustomTool(run_sql, name="sql", description="", **{syntax: text})
    assert tool.definition == {
        "type": "custom",
        "name": "sql",
        "description": "",
        "format": {"type": "grammar", "syntax": syntax, "definition": text},
    }


def test_two_grammars_are_refused():
    with pytest.raises(ValueError, match="lark or regex"):
        CustomTool(run_sql, lark="", regex="")


def test_decorator_with_and_without_options():
    @custom_tool
    def bare(text):
        """Bare."""

    @custom_tool(name="other", regex="a+", deadline_s=3)
    def given(text: str) -> str:
        return text

    assert isinstance(bare, CustomTool) and isinstance(given, CustomTool)
    assert (bare.name, bare.description, bare.deadline_s) == ("bare", "Bare.", None)
    assert (given.name, given.definition["format"]["syntax"], given.deadline_s) == ("other", "regex", 3)


async def test_text_arrives_as_it_is():
    assert await CustomTool(run_sql).call('{"not": "parsed"}\n') == '{"not": "parsed"}\n 10'
    assert await CustomTool(len).call("") == "0"


async def test_pieces_of_a_generator_are_told():
    def shout(text: str, /) -> Iterator[str]:
        yield from text.upper()

    seen: list[str] = []
    assert await CustomTool(shout).call("ab", seen.append) == "AB"
    assert seen == ["A", "B"]


def nothing() -> None: ...
def two(text: str, more: str) -> None: ...
def keyword(*, text: str) -> None: ...
def star(*texts: str) -> None: ...
def number(count: int) -> None: ...
def nested(text: "dict[str, Any]") -> None: ...


@pytest.mark.parametrize("function", [nothing, two, keyword, star, number, nested])
def test_function_that_takes_anything_but_one_text_is_refused(function):
    with pytest.raises(TypeError, match=f"tool {function.__name__}: a custom tool's function takes one text"):
        CustomTool(function)
