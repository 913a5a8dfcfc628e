"""A Python function as a custom tool: the model writes free text instead of JSON, and the function gets all of it."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints, overload

from engine.content import Content
from engine.docstrings import describe
from engine.toolcall import OnPiece, ToolFunction, call_function, no_piece


class CustomTool:
    """A function of one text. Raises TypeError for another signature, ValueError for two grammars.

    lark, regex: a grammar that the model's text keeps to. deadline_s: as of a FunctionTool.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        lark: str | None = None,
        regex: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        if lark is not None and regex is not None:
            raise ValueError("a custom tool has one grammar: lark or regex")
        self.function = function
        self.name: str = name or function.__name__
        parameter = _text_parameter(function, self.name)
        self.description = description if description is not None else _description(function, parameter)
        self.deadline_s = deadline_s
        self._grammar = ("lark", lark) if lark is not None else ("regex", regex) if regex is not None else None

    @property
    def definition(self) -> dict[str, Any]:
        """The Responses API's custom tool: type, name, description, and its grammar as format."""
        definition = {"type": "custom", "name": self.name, "description": self.description}
        if self._grammar is None:
            return definition
        syntax, text = self._grammar
        return definition | {"format": {"type": "grammar", "syntax": syntax, "definition": text}}

    async def call(self, arguments: str, on_piece: OnPiece = no_piece) -> Content:
        """The whole output for the model's text; see `call_function`."""
        return await call_function(self.function, (arguments,), {}, on_piece)


@overload
def custom_tool(function: ToolFunction, /) -> CustomTool: ...


@overload
def custom_tool(
    *,
    name: str | None = None,
    description: str | None = None,
    lark: str | None = None,
    regex: str | None = None,
    deadline_s: float | None = None,
) -> Callable[[ToolFunction], CustomTool]: ...


def custom_tool(
    function: ToolFunction | None = None, /, **options: Any
) -> CustomTool | Callable[[ToolFunction], CustomTool]:
    """Make a function a custom tool: `@custom_tool`, or `@custom_tool(lark=…)` with what a CustomTool takes."""
    if function is not None:
        return CustomTool(function)
    return lambda given: CustomTool(given, **options)


def _text_parameter(function: ToolFunction, name: str) -> str:
    """The parameter that takes the text."""
    first, *rest = inspect.signature(function).parameters.values() or [None]
    needed = [parameter for parameter in rest if parameter and parameter.default is inspect.Parameter.empty]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if first is None or first.kind not in positional or needed:
        raise TypeError(f"tool {name}: a custom tool's function takes one text")
    hint = get_type_hints(function).get(first.name, str)
    if hint is not str:
        raise TypeError(f"tool {name}: a custom tool's function takes one text, and '{first}' is none")
    return first.name


def _description(function: ToolFunction, parameter: str) -> str:
    described = describe(inspect.getdoc(function))
    text = described.parameters.get(parameter)
    return "\n\n".join(filter(None, [described.summary, text and f"Input: {text}"]))
