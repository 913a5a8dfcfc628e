"""What a step may write, as llguidance grammars: calls of the tools, an answer of a given JSON shape.

Grammars depend on the tools and the choice only, so they are built once for each and shared by all runs and turns.
A model that thinks may do so before what it is held to.
"""

from typing import Any

from engine.backends.base import StepSpec
from engine.backends.call_grammar import Answer, CallGrammar
from engine.backends.constraint import Constraint
from engine.backends.custom_grammar import CustomGrammar
from engine.backends.families import Family
from engine.backends.lark import error_of, json_rule
from engine.backends.schema_faults import Fault, fault_of_rule, fault_of_schema
from engine.backends.toolset import ToolSet, held_parameters_of
from engine.backends.vocabulary import Vocabulary
from engine.errors import RequestError
from engine.toolspec import Tool


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
        schema = answer_schema(text_format)
        self._answer = None if schema is None else Answer(schema, bool((text_format or {}).get("strict")))
        self._writer = CallGrammar(family, vocabulary)
        self._built: dict[tuple[frozenset[str], bool, str, bool], str] = {}
        self._check(tools.by_label)

    def constraint(self, step: StepSpec, *, after_output: bool, begins_in_thought: bool = False) -> Constraint | None:
        """How the step is held; None when it is free.

        after_output: the turn answers a tool's output. begins_in_thought: it begins within the model's reasoning.
        Raises RequestError when the choice demands a call and there is no such tool.
        """
        if step.is_summary:
            return None
        if not self._family.knows_calls:
            return self._without_calls(step)
        choice, thought = step.tool_choice, self._thought(begins_in_thought=begins_in_thought)
        labels = self._tools.callable_under(choice)
        if choice.mode == "required":
            if not labels:
                raise RequestError("tool_choice demands a call of a tool that is not in `tools`.", param="tool_choice")
            return Constraint(self._grammar(labels, thought=thought))
        if self._answer is not None:
            return Constraint(self._grammar(labels, may_answer=True, thought=thought))
        return self._auto(labels, thought, after_output=after_output) if labels else None

    def _without_calls(self, step: StepSpec) -> Constraint | None:
        """For a model whose calls nobody can write down: they may come, or an answer is held, but not both."""
        if step.tool_choice.mode == "required":
            raise RequestError("This model's calls cannot be held to, so none can be required.", param="tool_choice")
        return None if self._answer is None else Constraint(self._grammar(frozenset(), may_answer=True))

    def _thought(self, *, begins_in_thought: bool) -> str:
        """Whether the step may think first (`may`), or is at it (`open`)."""
        family = self._family
        if begins_in_thought:
            return "open"
        thinks = family.is_harmony or (family.reasoning is not None and self._writer.is_token(family.reasoning[0]))
        return "may" if thinks else ""

    def _auto(self, labels: frozenset[str], thought: str, *, after_output: bool) -> Constraint | None:
        family, opening = self._family, self._family.calls.open
        if family.auto.mode == "decide":
            threshold = family.auto.after_output if after_output else family.auto.threshold
            trigger, *rest = self._vocabulary.encode(opening)
            return Constraint(self._grammar(labels), "decide", trigger, threshold, rest[0] if rest else None)
        if family.is_harmony or family.calls.begins_turn:
            # No token opens a call and nothing else: the turn as a whole is a call, or what cannot be one.
            return Constraint(self._grammar(labels, thought=thought, may_talk=True))
        if opening not in self._vocabulary.added:
            # The tag is several tokens, the first of which also begins other text: the grammar spans the turn.
            return Constraint(self._grammar(labels, may_talk=True))
        return Constraint(self._grammar(labels), "on_trigger", self._vocabulary.added[opening])

    def _grammar(
        self, labels: frozenset[str], *, may_answer: bool = False, thought: str = "", may_talk: bool = False
    ) -> str:
        key = (labels, may_answer, thought, may_talk)
        if key not in self._built:
            tools = [(label, tool) for label, tool in self._tools.by_label.items() if label in labels]
            answer = self._answer if may_answer else None
            self._built[key] = self._writer.write(
                tools, answer, parallel=self._parallel, thought=thought, may_talk=may_talk
            )
        return self._built[key]

    def _check(self, tools: dict[str, Tool]) -> None:
        """Compile everything at once; only when that fails look for the one that is to blame."""
        answer = [] if self._answer is None else [json_rule(self._answer.schema, is_strict=self._answer.is_strict)]
        rules = [_rule_of(tool) for tool in tools.values()]
        if error_of([*rules, *answer]) is None:
            return
        for index, tool in enumerate(tools.values()):
            _expect_valid(tool, f"tools[{index}]")
        if self._answer and (fault := fault_of_schema(self._answer.schema, is_strict=self._answer.is_strict)):
            raise RequestError(
                f"Invalid schema for the response format: {fault.reason}.",
                param=f"text.format.schema{fault.place}",
                code="invalid_json_schema",
            )


def _rule_of(tool: Tool) -> str:
    custom = CustomGrammar.of(tool)
    return json_rule(held_parameters_of(tool), is_strict=tool.strict) if custom is None else custom.raw_rule()


def _expect_valid(tool: Tool, place: str) -> None:
    custom = CustomGrammar.of(tool)
    if custom is not None:
        fault: Fault | None = fault_of_rule(custom.raw_rule())
        where = ".format.definition"
    else:
        fault = fault_of_schema(held_parameters_of(tool), is_strict=tool.strict)
        where = f".parameters{fault.place}" if fault else ""
    if fault is not None:
        raise RequestError(
            f"Invalid {'grammar' if custom else 'schema'} for tool '{tool.name}': {fault.reason}.",
            param=place + where,
            code=None if custom else "invalid_function_parameters",
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
