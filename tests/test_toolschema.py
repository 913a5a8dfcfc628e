"""Functions as tools: their definition, what arguments they take, what their outputs become."""

import enum
import threading
import warnings
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from engine.customtool import CustomTool
from engine.toolcall import InvalidArguments
from engine.toolschema import FunctionTool, as_tool, is_strict

NOTHING = object()


def weather(city: str, days: Annotated[int, Field(ge=1, description="how many days")] = 3) -> str:
    """Forecast the weather.

    Args:
        city: where
        days: not used, Field wins
    """
    return f"{city} {days}"


def test_definition_says_all_that_the_function_says():
    assert FunctionTool(weather).definition == {
        "type": "function",
        "name": "weather",
        "description": "Forecast the weather.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "integer", "minimum": 1, "default": 3, "description": "how many days"},
            },
        },
        "strict": False,
    }


def test_name_and_description_can_be_given():
    tool = FunctionTool(weather, name="forecast", description="d")
    assert (tool.name, tool.description) == ("forecast", "d")


def test_function_without_hints_or_docstring_is_a_tool_all_the_same():
    def bare(x, y=1):
        return None

    definition = FunctionTool(bare).definition
    assert definition["description"] == ""
    assert definition["parameters"]["required"] == ["x"]


def test_function_without_parameters_is_strict():
    tool = FunctionTool(lambda: 1, name="f")
    assert tool.parameters == {"type": "object", "additionalProperties": False, "properties": {}}
    assert tool.definition["strict"] is True


class Colour(enum.Enum):
    RED = "red"


class Place(pydantic.BaseModel):
    name: str


async def test_rich_types_arrive_as_such():
    seen: list[Any] = []

    async def paint(place: Place, colour: Colour, size: Literal["s", "m"], tags: list[str] | None = None) -> None:
        seen.extend([place, colour, size, tags])

    arguments = '{"place": {"name": "x"}, "colour": "red", "size": "m"}'
    assert await FunctionTool(paint).call(arguments) == "null"
    assert seen == [Place(name="x"), Colour.RED, "m", None]


@pytest.mark.parametrize("name", ["json", "schema", "_private", "model_config", "copy", "self_"])
async def test_any_parameter_name_works(name):
    space: dict[str, Any] = {}
    exec(f"async def f({name}: str) -> str:\n    return {name}", space)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tool = FunctionTool(space["f"])
    assert list(tool.parameters["properties"]) == [name]
    assert await tool.call(f'{{"{name}": "v"}}') == "v"


def test_default_that_json_cannot_say_is_left_out():
    def f(x: Any = NOTHING) -> None:
        """F."""

    assert "default" not in FunctionTool(f).parameters["properties"]["x"]


def test_bound_method_is_a_tool_without_self():
    class Bank:
        def pay(self, amount: int) -> int:
            return amount

    assert list(FunctionTool(Bank().pay).parameters["properties"]) == ["amount"]


def star(*args: int) -> None: ...
def double_star(**more: int) -> None: ...
def positional(x: int, /) -> None: ...


@pytest.mark.parametrize("function", [star, double_star, positional])
def test_parameters_that_json_cannot_name_are_refused(function):
    with pytest.raises(TypeError, match="use a named one"):
        FunctionTool(function)


def test_builtin_without_signature_is_refused():
    with pytest.raises(TypeError, match="wrap it"):
        FunctionTool(threading.get_ident)


def test_as_tool_keeps_a_tool():
    for tool in (FunctionTool(weather), CustomTool(len)):
        assert as_tool(tool) is tool
    assert as_tool(weather).name == "weather"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[]", "should be an object"),
        ("", "city: Field required"),
        ('{"city": 1}', "city: Input should be a valid string"),
        ('{"city": "x", "days": 0}', "days: Input should be greater than or equal to 1"),
        ('{"city": "x", "when": 1}', "when: Extra inputs are not permitted"),
    ],
)
async def test_wrong_arguments_are_explained_to_the_model(arguments, problem):
    with pytest.raises(InvalidArguments) as caught:
        await FunctionTool(weather).call(arguments)
    assert str(caught.value).startswith("Invalid arguments for weather: ")
    assert problem in str(caught.value)
    assert "pydantic.dev" not in str(caught.value)


async def test_validation_error_inside_the_function_is_not_the_models_mistake():
    async def f() -> None:
        Place.model_validate({})

    with pytest.raises(pydantic.ValidationError):
        await FunctionTool(f).call("{}")


async def test_defaults_stay_the_functions_own():
    marker = object()

    async def f(x: Any = marker) -> str:
        return str(x is marker)

    assert await FunctionTool(f).call("{}") == "True"


async def numbers(n: int) -> AsyncIterator[Any]:
    for i in range(n):
        yield f"{i};"


async def test_pieces_of_a_generator_are_told():
    seen: list[str] = []
    tool = FunctionTool(numbers)
    assert tool.is_streaming
    assert await tool.call('{"n": 2}', seen.append) == "0;1;"
    assert seen == ["0;", "1;"]


@pytest.mark.parametrize("name", ["function", "args", "keywords", "on_piece"])
async def test_parameter_may_be_named_as_the_callers_own(name):
    space: dict[str, Any] = {}
    exec(f"def f({name}: str) -> str:\n    return {name}", space)
    assert await FunctionTool(space["f"]).call(f'{{"{name}": "v"}}') == "v"


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False}, False),
        ({"type": "object", "properties": {}}, False),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, False),
    ],
)
def test_is_strict(schema, strict):
    assert is_strict(schema) is strict
