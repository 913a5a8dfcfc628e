"""A custom tool's own grammar (`format: {type: grammar, syntax, definition}`), and how a call is held to it.

Where calls write a text as it stands, the grammar holds as it is. Where it stands in a JSON string, a regular
expression is the string's pattern; a Lark grammar is rewritten, so that it speaks of the string as JSON writes it: its
literals are escaped, and its patterns may not match what would have to be (quotes, backslashes, control characters),
but for those that mean line ends alone. That is narrower than what the client wrote, and never wider.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from engine.backends.lark import error_of, json_rule
from engine.backends.toolset import held_parameters_of
from engine.toolspec import Tool

_TOKENS: Final = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)""",
    re.VERBOSE,
)
_LINE_END: Final = re.compile(r"\(?(?:\\r\??)?(?:\\n|\[\\n\])\)?(?P<count>[+*?]?)")
_FREE: Final = held_parameters_of(Tool("custom", ""))
_PREFIX: Final = "LONGLOOP_PATTERN_"
_UNESCAPED: Final = r"/[^\"\\\x00-\x1f\x7f]*/"


class CustomGrammar(msgspec.Struct, frozen=True):
    """`syntax` is lark or regex."""

    syntax: str
    definition: str

    @classmethod
    def of(cls, tool: Tool) -> "CustomGrammar | None":
        """The grammar of a tool, which `decode_tools` has checked; None where it has none."""
        return None if tool.grammar is None else cls(tool.grammar["syntax"], tool.grammar["definition"])

    def raw_rule(self) -> str:
        """The text as it stands."""
        if self.syntax == "regex":
            return f"%lark {{\nstart: {_regex_literal(self.definition)}\n}}"
        return f"%lark {{\n{self.definition}\n}}"

    def json_lines(self, name: str) -> Iterator[str]:
        """Rules of the arguments `{"input": …}` under this name."""
        if self.syntax == "regex":
            schema: dict[str, Any] = {
                "type": "object",
                "properties": {"input": {"type": "string", "pattern": f"^(?:{self.definition})$"}},
                "required": ["input"],
                "additionalProperties": False,
            }
            yield f"{name}: {json_rule(schema)}"
            return
        inner = f"%lark {{\n{_in_json(self.definition)}\n}}"
        if error_of([inner]) is None:
            yield f'{name}: "{{\\"input\\": \\"" {name}_input "\\"}}"'
            yield f"{name}_input: {inner}"
        else:  # it cannot be said of JSON strings
            yield f"{name}: {json_rule(_FREE)}"


def _regex_literal(pattern: str) -> str:
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern) + "/"


def _in_json(definition: str) -> str:
    """The grammar of the same texts as JSON strings write them, as far as it can be said."""
    narrowed: list[str] = []  # patterns; a grammar can intersect them in terminals only

    def escaped(token: re.Match[str]) -> str:
        if token["comment"]:
            return ""
        if token["string"]:
            return _escaped_string(token[0])
        if line_end := _LINE_END.fullmatch(token[0][1 : token[0].rindex("/")]):
            return f'("\\\\n"){line_end["count"]}'
        narrowed.append(token[0])
        return f"{_PREFIX}{len(narrowed) - 1}"

    rules = _TOKENS.sub(escaped, definition)
    terminals = (f"{_PREFIX}{index}: {pattern} & {_UNESCAPED}" for index, pattern in enumerate(narrowed))
    return "\n".join([rules, *terminals])


def _escaped_string(text: str) -> str:
    body, flag = (text[:-1], "i") if text.endswith("i") else (text, "")
    try:
        value = msgspec.json.decode(body, type=str)
    except msgspec.DecodeError:
        return text
    return json.dumps(json.dumps(value, ensure_ascii=False)[1:-1], ensure_ascii=False) + flag
