"""The Lark text (llguidance's dialect) of a family's calls, thoughts and answers.

Tags that are tokens of their own stand as ids, since their text never matches; all else is text.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from engine.backends.call_syntax import Pairs
from engine.backends.custom_grammar import CustomGrammar
from engine.backends.families import Family
from engine.backends.lark import json_rule
from engine.backends.toolset import call_schema, held_parameters_of
from engine.backends.vocabulary import Vocabulary
from engine.toolspec import Tool

_ANYTHING: Final = "/(?s:.*)/"
_NAME: Final = "/[A-Za-z0-9_.-]+/"


class Answer(NamedTuple):
    """The schema of a JSON answer, and whether what a grammar cannot express of it is an error."""

    schema: dict[str, Any]
    is_strict: bool = False


class CallGrammar:
    """Writes grammars for one family and tokenizer."""

    def __init__(self, family: Family, vocabulary: Vocabulary) -> None:
        self._family = family
        self._syntax = family.calls
        self._added = vocabulary.added
        names = sorted(filter(None, self._added), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def write(
        self,
        tools: Sequence[tuple[str, Tool]],
        answer: Answer | None,
        *,
        parallel: bool,
        thought: str = "",
        may_talk: bool = False,
    ) -> str:
        """A turn that calls these (label, tool), or gives an answer, where there is one to give.

        thought: `open` for a turn that begins within the model's reasoning, `may` for one that may begin with some.
        may_talk: or says anything else, before calls too where a tag that is no token opens them.
        """
        if answer is not None and tools and self._syntax.begins_turn:
            return f"start: {self._call_or_answer(tools, answer)}\n"
        ways = ["calls"] * bool(tools) + ["answer"] * (answer is not None) + ["talk"] * may_talk
        if may_talk and self._tag_is_text:
            ways = ["talk", "up_to_calls behind"]
        lines = [f"start: {self._lead(thought)}({' | '.join(ways)})" if thought else f"start: {' | '.join(ways)}"]
        lines += self._thought_rules(thought)
        if answer is not None:
            lines.append(f"answer: {self._answer_rule(json_rule(answer.schema, is_strict=answer.is_strict))}")
        if may_talk:
            lines += self._talk_rules()
        if tools:
            lines += self._call_rules(tools, parallel=parallel)
        return "\n".join(lines) + "\n"

    @property
    def _tag_is_text(self) -> bool:
        """Whether a tag opens calls that is no token of its own, so that text may begin like it."""
        return bool(self._syntax.open) and not self._family.is_harmony

    # --- what may stand before

    def _lead(self, thought: str) -> str:
        return "rest_of_thought " if thought == "open" else "thought{0,8} " if self._family.is_harmony else "thought? "

    def _thought_rules(self, thought: str) -> Iterator[str]:
        if not thought:
            return
        if self._family.is_harmony:
            open_, close = "<|message|>", "<|end|><|start|>assistant"
            channel = f'{self.text("<|channel|>")} ("analysis" | "commentary")'
            yield f"thought: {channel} {self.text(open_)} {_ANYTHING} {self.text(close)}"
            return
        assert self._family.reasoning
        open_, close = self._family.reasoning
        yield f"{'rest_of_thought' if thought == 'open' else 'inner'}: {self._up_to(close, 'thoughts')}"
        yield f"{self._up_to_rule(close, 'thoughts')}"
        if thought != "open":
            yield f"thought: /\\n?/ {self.text(open_)} inner"

    def _up_to(self, tag: str, name: str) -> str:
        """Anything, up to and with a tag, and the white space that parts it from what follows."""
        end = f" {self.text(tag)}" if tag in self._added else ""
        return f"{name}{end} /\\n{{0,2}}/"

    def _up_to_rule(self, tag: str, name: str) -> str:
        return f"{name}: {_ANYTHING}" if tag in self._added else f"{name}[suffix={_literal(tag)}]: {_ANYTHING}"

    def _answer_rule(self, rule: str) -> str:
        return f"{self.text('<|channel|>final<|message|>')} {rule}" if self._family.is_harmony else rule

    def _call_or_answer(self, tools: Sequence[tuple[str, Tool]], answer: Answer) -> str:
        """One JSON value: where a call and an answer begin alike, a grammar must not have to tell them apart."""
        key = self._syntax.arguments_key
        return json_rule({"anyOf": [*(call_schema(label, tool, key) for label, tool in tools), answer.schema]})

    def _talk_rules(self) -> Iterator[str]:
        """Any answer that is no call."""
        if self._family.is_harmony:
            yield f"talk: {self.text('<|channel|>final<|message|>')} {_ANYTHING}"
        elif self._tag_is_text:
            tag = re.escape(self._syntax.open).replace("/", r"\/")
            yield "talk: TALK"
            yield f"TALK: {_ANYTHING} & ~/(?s:.*){tag}(?s:.*)/"
            yield f"up_to_calls[suffix={_literal(self._syntax.open)}]: {_ANYTHING}"
        else:
            yield r"talk: /(\s*[^{\s;](?s:.*))?/"

    # --- calls

    def _call_rules(self, tools: Sequence[tuple[str, Tool]], *, parallel: bool) -> Iterator[str]:
        syntax = self._syntax
        more = self._family.max_parallel_calls - 1 if parallel and not self._family.is_harmony else 0
        begin, end = self.text(syntax.begin), self.text(syntax.end + self._close)
        stop = self.text(self._family.call_stop) if self.is_token(self._family.call_stop) else ""
        one = " | ".join(f"call_{index}" for index in range(len(tools)))
        yield f"calls: {self.text(syntax.open)} behind"
        if syntax.between is None:
            yield f"behind: {begin} ({one}) {end}{_repeated(self.text(syntax.between_blocks), 'block', more)} {stop}"
            yield f"block: {self.text(syntax.open)} {begin} ({one}) {end}"
        else:
            yield f"behind: {begin} call{_repeated(self.text(syntax.between), 'call', more)} {end} {stop}"
            yield f"call: {one}"
        for index, (label, tool) in enumerate(tools):
            head = self.text(syntax.before_name + syntax.written_name(label) + syntax.before_arguments)
            yield f"call_{index}: {head} arguments_{index} {self.text(syntax.after_arguments)}"
            yield from self._argument_rules(f"arguments_{index}", tool)

    @property
    def _close(self) -> str:
        return "" if self._syntax.close == self._family.call_stop else self._syntax.close

    def _argument_rules(self, name: str, tool: Tool) -> Iterator[str]:
        custom = CustomGrammar.of(tool)
        if self._syntax.pairs is not None:
            yield from _PairRules(self, self._syntax.pairs, name, held_parameters_of(tool), custom).lines()
        elif custom is not None:
            yield from custom.json_lines(name)
        else:
            yield f"{name}: {json_rule(held_parameters_of(tool), is_strict=tool.strict)}"

    def text(self, text: str) -> str:
        """A text as a grammar writes it: strings, and ids of tokens."""
        parts = self._split.split(text) if self._split else [text]
        return " ".join(
            f"<[{self._added[part]}]>" if index % 2 else _literal(part) for index, part in enumerate(parts) if part
        )

    def is_token(self, tag: str) -> bool:
        """Whether the tag is one token of its own."""
        return tag in self._added


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _repeated(between: str, rule: str, count: int) -> str:
    return f" ({between} {rule}){{0,{count}}}" if count > 0 else ""


class _PairRules:
    """The rules of one call's arguments, written as pairs, in the order of the schema."""

    def __init__(
        self, grammar: CallGrammar, pairs: Pairs, name: str, schema: dict[str, Any], custom: CustomGrammar | None
    ) -> None:
        self._grammar = grammar
        self._pairs = pairs
        self._name = name
        self._schema = schema
        self._custom = custom

    def lines(self) -> Iterator[str]:
        properties = self._schema.get("properties") or {}
        required = set(self._schema.get("required") or ())
        parts = []
        for index, (name, schema) in enumerate(properties.items()):
            rule = f"{self._name}_{index}"
            parts.append(rule if name in required else f"{rule}?")
            yield from self._pair(rule, name, schema)
        if not properties or self._schema.get("additionalProperties", True) is not False:
            parts.append(f"{self._name}_other*")
            yield from self._other(f"{self._name}_other")
        yield f"{self._name}: {' '.join(parts)}" if parts else f'{self._name}: ""'

    def _pair(self, rule: str, name: str, schema: Any) -> Iterator[str]:
        head = self._grammar.text(self._pairs.before_name + name + self._pairs.before_value)
        end = self._grammar.text(self._pairs.after_value)
        texts = _texts_of(schema)
        if self._custom is not None:
            yield f"{rule}: {head} {self._custom.raw_rule()} {end}"
        elif texts is not None:
            yield f"{rule}: {head} ({' | '.join(map(self._grammar.text, texts))}) {end}"
        elif _is_text(schema):
            yield from self._free(rule, head)
        else:
            whole = schema | {key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}
            yield f"{rule}: {head} {json_rule(whole)} {end}"

    def _free(self, rule: str, head: str) -> Iterator[str]:
        """Any text up to what ends a value."""
        after = self._pairs.after_value
        if self._grammar.is_token(after.strip("\n")):
            yield f"{rule}: {head} {_ANYTHING} {self._grammar.text(after)}"
        else:
            yield f"{rule}: {head} {rule}_value"
            yield f"{rule}_value[suffix={_literal(after)}]: {_ANYTHING}"

    def _other(self, rule: str) -> Iterator[str]:
        before = self._grammar.text(self._pairs.before_name)
        yield from self._free(rule, f"{before} {_NAME} {self._grammar.text(self._pairs.before_value)}")


def _is_text(schema: Any) -> bool:
    return not isinstance(schema, dict) or schema.get("type", "string") == "string"


def _texts_of(schema: Any) -> list[str] | None:
    """The texts that a value is one of; None where it is not of a few texts."""
    if not isinstance(schema, dict):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) and values and all(isinstance(one, str) for one in values) else None
