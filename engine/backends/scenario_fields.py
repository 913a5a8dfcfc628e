"""YAML values that know where they stand, so that an error in a scenario names file, line, column and field.

JSON is read by the same parser, as YAML is very nearly a superset of it.
"""

import math
from collections.abc import Collection
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64  # an alias may contain itself (`&a [*a]`); nothing real nests this deep

_TAG: Final = "tag:yaml.org,2002:"
_KINDS: Final = {
    "str": "text",
    "timestamp": "text",  # an unquoted date: as text it is what the author wrote
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "seq": "a list",
    "map": "an object",
}
_SCALARS: Final = yaml.constructor.SafeConstructor()


class ScenarioError(ValueError):
    """A scenario that cannot be played. `str()` is `file:line:column: field.path: reason`.

    Line and column count from 1; both are 0 when the file itself is the fault, and `str()` leaves them out.
    """

    def __init__(self, file: str, line: int, column: int, path: str, reason: str) -> None:
        place = f"{file}:{line}:{column}" if line else file
        super().__init__(": ".join(part for part in (place, path, reason) if part))
        self.file = file
        self.line = line
        self.column = column
        self.path = path
        self.reason = reason


class Field:
    """One value of a scenario file. The readers return it as the type in their name or raise ScenarioError."""

    __slots__ = ("_depth", "_node", "file", "path")

    def __init__(self, node: yaml.Node, file: str, path: str = "", depth: int = 0) -> None:
        self._node = node
        self._depth = depth
        self.file = file
        self.path = path

    def error(self, reason: str) -> ScenarioError:
        """An error at this value's place, to be raised."""
        mark = self._node.start_mark
        return ScenarioError(self.file, mark.line + 1, mark.column + 1, self.path, reason)

    @property
    def kind(self) -> str:
        """`text`, `an integer`, `a number`, `true or false`, `nothing`, `a list` or `an object`."""
        tag = str(self._node.tag)
        kind = _KINDS.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
        if kind is None:
            raise self.error(f"unknown tag {tag}")
        return kind

    def _expect(self, *kinds: str) -> None:
        if self.kind not in kinds:
            raise self.error(f"expected {kinds[0]}, got {self.kind}")

    def _child(self, node: yaml.Node, step: str) -> "Field":
        if self._depth == MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels")
        dot = "." if self.path and not step.startswith("[") else ""
        return Field(node, self.file, f"{self.path}{dot}{step}", self._depth + 1)

    def pairs(self, known: Collection[str] | None = None) -> list[tuple[str, "Field"]]:
        """Keys and values of an object in the order written; a key that is not `known`, or is there twice, fails."""
        self._expect("an object")
        found: dict[str, Field] = {}
        for key_node, value_node in self._node.value:
            key = Field(key_node, self.file, self.path, self._depth).text()
            place = self._child(key_node, key)
            if known is not None and key not in known:
                raise place.error(f"unknown key; known here: {', '.join(sorted(known))}")
            if key in found:
                raise place.error("given twice")
            found[key] = self._child(value_node, key)
        return list(found.items())

    def elements(self) -> list["Field"]:
        """The members of a list."""
        self._expect("a list")
        return [self._child(node, f"[{index}]") for index, node in enumerate(self._node.value)]

    def text(self) -> str:
        """A text. Numbers and booleans have to be quoted to be one."""
        self._expect("text")
        try:
            # JSON writes characters outside the BMP as two escapes, which YAML leaves as two halves.
            return str(self._node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self.error("half of a surrogate pair") from None

    def integer(self, least: int = 0) -> int:
        """A whole number, at least `least`."""
        self._expect("an integer")
        value = int(self._scalar())
        if value < least:
            raise self.error(f"must be at least {least}")
        return value

    def number(self, least: float = 0.0) -> float:
        """A finite number, at least `least`."""
        self._expect("a number", "an integer")
        value = float(self._scalar())
        if not (math.isfinite(value) and value >= least):
            raise self.error(f"must be at least {least:g}")
        return value

    def choice(self, *names: str) -> str:
        """One of `names`."""
        if self.kind != "text" or self.text() not in names:
            raise self.error(f"expected one of {', '.join(names)}")
        return self.text()

    def _scalar(self) -> Any:
        node: Any = self._node  # a ScalarNode, as its kind says
        match self.kind:
            case "an integer":
                return _SCALARS.construct_yaml_int(node)
            case "a number":
                return _SCALARS.construct_yaml_float(node)
            case "true or false":
                return _SCALARS.construct_yaml_bool(node)
            case "text":
                return self.text()
            case _:
                return None

    def json(self) -> Any:
        """Any JSON value."""
        match self.kind:
            case "an object":
                return {key: value.json() for key, value in self.pairs()}
            case "a list":
                return [value.json() for value in self.elements()]
            case "a number":
                return self.number(-math.inf)
            case _:
                return self._scalar()


def read_fields(source: str, file: str) -> Field:
    """The root value of a YAML or JSON document. Raises ScenarioError; `file` is the name it shows."""
    try:
        # A tab is whitespace in JSON but an error in YAML, and a raw one cannot be part of a JSON text.
        node = yaml.compose(source.replace("\t", " ") if file.endswith(".json") else source, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ScenarioError(file, line, column, "", str(error.problem)) from error
    except yaml.reader.ReaderError as error:
        line = source.count("\n", 0, error.position) + 1
        column = error.position - source.rfind("\n", 0, error.position)
        raise ScenarioError(file, line, column, "", error.reason) from error
    except RecursionError as error:
        raise ScenarioError(file, 1, 1, "", "nested too deeply") from error
    if node is None:
        raise ScenarioError(file, 1, 1, "", "the file is empty")
    return Field(node, file)
