"""A Python function as a tool: its definition for the model, and calls with the model's arguments.

The schema comes from the function's hints through pydantic, descriptions from `Annotated[…, Field(description=…)]` or
the docstring. Arguments are checked before the call, apart from it, so that a mistake of the model's (it gets told
what to change) is never confused with a ValidationError raised inside the function (a failure of the tool).
"""

import inspect
from typing import Any, get_type_hints

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from engine.content import Content
from engine.customtool import CustomTool
from engine.docstrings import describe
from engine.toolcall import InvalidArguments, OnPiece, ToolFunction, call_function, no_piece


class FunctionTool:
    """A function offered to the model. Raises TypeError for a signature that JSON arguments cannot fill.

    `deadline_s` is the longest a call may take; None leaves it to the run's own.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        described = describe(inspect.getdoc(function))
        self.function = function
        self.name: str = name or function.__name__
        self.description = description if description is not None else described.summary
        self.deadline_s = deadline_s
        self._model = _arguments_model(function, self.name, described.parameters)
        self.parameters = _schema(self._model)

    @property
    def definition(self) -> dict[str, Any]:
        """The Responses API's function tool: type, name, description, parameters, strict."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": is_strict(self.parameters),
        }

    @property
    def is_streaming(self) -> bool:
        """True for a generator function, whose pieces are sent while it runs."""
        return inspect.isasyncgenfunction(self.function) or inspect.isgeneratorfunction(self.function)

    def parse(self, arguments: str) -> dict[str, Any]:
        """Keyword arguments from the model's JSON (empty text counts as no arguments). Raises InvalidArguments."""
        try:
            values = self._model.model_validate_json(arguments.strip() or "{}")
        except pydantic.ValidationError as error:
            raise InvalidArguments(_explain(self.name, error)) from error
        named = {field: info.alias or field for field, info in type(values).model_fields.items()}
        # Only what the model gave: the function's own defaults stay the function's.
        return {named[field]: getattr(values, field) for field in values.model_fields_set}

    async def call(self, arguments: str, on_piece: OnPiece = no_piece) -> Content:
        """The whole output; see `call_function`. Raises InvalidArguments, and whatever the function raises."""
        return await call_function(self.function, (), self.parse(arguments), on_piece)


def as_tool(tool: ToolFunction | FunctionTool | CustomTool) -> FunctionTool | CustomTool:
    """The tool of a function; what is a tool already stays as it is."""
    return tool if isinstance(tool, FunctionTool | CustomTool) else FunctionTool(tool)


# --- the schema --------------------------------------------------------------------------------------------------


def _arguments_model(function: ToolFunction, name: str, descriptions: dict[str, str]) -> type[pydantic.BaseModel]:
    """A model of the function's parameters. Fields are numbered and aliased, since a parameter may be called `json`
    or `_x`, which are no field names."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(_parameters(function, name)):
        _refuse_unnamed(parameter, name)
        info = FieldInfo.from_annotation(hints.get(parameter.name, Any))
        text = info.description or descriptions.get(parameter.name)
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        field = pydantic.Field(default, alias=parameter.name, description=text)
        fields[f"p{index}"] = (hints.get(parameter.name, Any), field)
    return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)


def _parameters(function: ToolFunction, name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError as error:
        raise TypeError(f"tool {name}: {error}; wrap it in a function of your own") from error


def _refuse_unnamed(parameter: inspect.Parameter, tool: str) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise TypeError(f"tool {tool}: parameter '{parameter}' is {parameter.kind.description}; use a named one")


class _Schema(GenerateJsonSchema):
    """No titles (they repeat the names and cost prompt tokens); a default that JSON cannot say is left out."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  # no ClassVar in pydantic either
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def is_strict(schema: Any) -> bool:
    """True when a schema meets strict mode's rules: every object closed and every property required."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object":
        is_closed = schema.get("additionalProperties") is False
        if not is_closed or set(schema.get("properties", {})) != set(schema.get("required", [])):
            return False
    return all(map(is_strict, schema.values()))


def _explain(name: str, error: pydantic.ValidationError) -> str:
    """The problems, in words the model can act on, without pydantic's links."""
    problems = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(map(str, problem["loc"]))
        problems.append(f"{path}: {problem['msg']}" if path else problem["msg"])
    return f"Invalid arguments for {name}: {'; '.join(problems)}. Call it again with arguments that fit its schema."
