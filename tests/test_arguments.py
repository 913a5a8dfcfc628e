"""arguments.py: what a written value stands for. Reading piece by piece is tried with every family."""

import pytest

from engine.backends.arguments import typed


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("7.5", {"type": "number"}, 7.5),
        ("7", {"type": ["integer", "string"]}, "7"),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7"),
        ("7", None, 7),
        ("7", {}, 7),
        ("7", {"enum": ["7", "8"]}, "7"),
        ("7", {"enum": [7, 8]}, 7),
        ("a", {"const": "a"}, "a"),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {}, None),
        ("None", {"type": "string"}, "None"),
        ('["a", 1]', {"type": "array"}, ["a", 1]),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ("a b", {"type": "integer"}, "a b"),
        (" x ", {}, " x "),
    ],
)
def test_a_value_has_the_type_of_its_schema(text, schema, value):
    found = typed(text, schema)
    assert (found, type(found)) == (value, type(value))
