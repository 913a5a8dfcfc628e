"""What a step may write, as llguidance grammars (Lark text): calls of the tools, an answer of a given JSON shape.

Grammars depend on the tools and the choice only, so they are built once for each and shared by all runs and turns.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from engine.backends.base import StepSpec
from engine.backends.constraint import Constraint
from engine.backends.families import Family
from engine.backends.template import to_json
from engine.backends.toolset import ToolSet, held_parameters_of
from engine.backends.vocabulary import Vocabulary
from engine.errors import RequestError
from engine.toolspec import Tool

try:
    from llguidance import LLMatcher
except ImportError:  # the extra `local` is not installed: nobody will obey a grammar, so nobody needs to check it
    LLMatcher = None

# One way to write white space, or a small model pads for ever. `lenient`: keywords that a grammar cannot express
# (`not`, unknown formats) loosen it instead of failing the request.
_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


class Grammars:
    """The grammars of one set of tools and one text format for one model. Raises RequestError for a bad schema."""

    def __init__(
        self,
        family: Family,
        vocabulary: Vocabulary,
        tools: ToolSet,
        *,
        parallel: bool = True,
        text_format: dict[str, Any] | None = None,
    ) -> None:
        self._family = family
        self._vocabulary = vocabulary
        self._tools = tools
        self._parallel = parallel
        self._answer = answer_schema(text_format)
        self._built: dict[tuple[frozenset[str], bool], str] = {}
        self._check(tools.by_label)

    def constraint(self, step: StepSpec, *, after_output: bool) -> Constraint | None:
        """How the step is held; None when it is free. `after_output`: the turn answers a tool's output.

        Raises RequestError when the choice demands a call and there is no such tool.
        """
        if step.is_summary:
            return None
        choice = step.tool_choice
        labels = self._tools.callable_under(choice)
        if choice.mode == "required":
            if not labels:
                raise RequestError("tool_choice demands a call of a tool that is not in `tools`.", param="tool_choice")
            return Constraint(self._grammar(labels, may_answer=False))
        if self._answer is not None:
            return Constraint(self._grammar(labels, may_answer=True))
        return self._auto(labels, after_output=after_output) if labels else None

    def _auto(self, labels: frozenset[str], *, after_output: bool) -> Constraint | None:
        auto, opening = self._family.auto, self._family.calls.open
        grammar = self._grammar(labels, may_answer=False)
        if auto.mode == "decide":
            threshold = auto.after_output if after_output else auto.threshold
            trigger, *rest = self._vocabulary.encode(opening)
            return Constraint(grammar, "decide", trigger, threshold, rest[0] if rest else None)
        if opening not in self._vocabulary.added:
            return None  # the tag is several tokens, the first of which also begins other text
        return Constraint(grammar, "on_trigger", self._vocabulary.added[opening])

    def _grammar(self, labels: frozenset[str], *, may_answer: bool) -> str:
        key = (labels, may_answer)
        if key not in self._built:
            tools = [(label, tool) for label, tool in self._tools.by_label.items() if label in labels]
            self._built[key] = self._lark(tools, self._answer if may_answer else None)
        return self._built[key]

    def _lark(self, tools: list[tuple[str, Tool]], answer: dict[str, Any] | None) -> str:
        starts = (["calls"] if tools else []) + (["answer"] if answer is not None else [])
        lines = [f"start: {' | '.join(starts)}"]
        if answer is not None:
            lines.append(f"answer: {_json_rule(answer)}")
        if tools:
            more = f' ("\\n" call){{0,{self._family.max_parallel_calls - 1}}}' if self._parallel else ""
            lines += [f"calls: call{more}", f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
        for index, (label, tool) in enumerate(tools):
            lines.append(f"call_{index}: {self._call_rule(label, index)}")
            lines.append(f"arguments_{index}: {_json_rule(held_parameters_of(tool))}")
        return "\n".join(lines) + "\n"

    def _call_rule(self, label: str, index: int) -> str:
        head = json.dumps('\n{"name": ' + to_json(label) + ', "arguments": ', ensure_ascii=False)
        opening, closing = self._tag(self._family.calls.open), self._tag(self._family.calls.close)
        return f'{opening} {head} arguments_{index} "}}\\n" {closing}'

    def _tag(self, tag: str) -> str:
        """A tag as llguidance wants it: by id when it is one token of its own, whose text it never matches."""
        known = self._vocabulary.added.get(tag)
        return json.dumps(tag) if known is None else f"<[{known}]>"

    def _check(self, tools: dict[str, Tool]) -> None:
        """Compile everything at once; only when that fails look for the one that is to blame."""
        if _is_valid([*map(held_parameters_of, tools.values()), *([] if self._answer is None else [self._answer])]):
            return
        for index, tool in enumerate(tools.values()):
            if reason := _fault([held_parameters_of(tool)]):
                raise RequestError(
                    f"Invalid schema for tool '{tool.name}': {reason}.",
                    param=f"tools[{index}].parameters",
                    code="invalid_function_parameters",
                )
        if self._answer is not None and (reason := _fault([self._answer])):
            raise RequestError(
                f"Invalid schema for the response format: {reason}.",
                param="text.format.schema",
                code="invalid_json_schema",
            )


def answer_schema(text_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """The schema that the model's text has to follow; None for free text."""
    match (text_format or {}).get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema = (text_format or {}).get("schema")
            if not isinstance(schema, dict):
                raise RequestError("A json_schema format needs a schema.", param="text.format.schema")
            return schema
        case other:
            raise RequestError(f"Unknown text format '{other}'.", param="text.format.type")


def _json_rule(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps(schema | {"x-guidance": _COMPACT})


def _is_valid(schemas: Iterable[dict[str, Any]]) -> bool:
    return _fault(schemas) is None


def _fault(schemas: Iterable[dict[str, Any]]) -> str | None:
    """Why llguidance cannot hold a model to these schemas; None when it can, or when it is not installed."""
    rules = [f"rule_{index}: {_json_rule(schema)}" for index, schema in enumerate(schemas)]
    if LLMatcher is None or not rules:
        return None
    start = " ".join(f"rule_{index}" for index in range(len(rules)))
    failed, messages = LLMatcher.validate_grammar_with_warnings("\n".join([f"start: {start}", *rules]), None)
    if not failed:
        return None
    # "at 1(8): failed to compile JSON schema: Invalid type: strin\n   1 | start: …": keep the reason.
    return str(messages[0]).partition("\n")[0].rpartition("JSON schema: ")[2].rstrip(".")
