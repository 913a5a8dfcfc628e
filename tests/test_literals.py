"""literals.py: white space counts for nothing, and what may still come is told from what cannot."""

import re

import pytest

from engine.backends.literals import Verdict, follow, lenient


@pytest.mark.parametrize(
    ("text", "literal", "expected"),
    [
        ("", "", 0),
        ("x", "", 0),
        ("", "ab", Verdict.MORE),
        ("a", "ab", Verdict.MORE),
        (" a\n", "ab", Verdict.MORE),
        ("ab", "ab", 2),
        (" a b c", "ab", 4),
        ("ab", " a\n b ", 2),
        ("ax", "ab", Verdict.OTHER),
        ("x", "ab", Verdict.OTHER),
        ("ab", "   ", 0),
    ],
)
def test_a_literal_is_followed(text, literal, expected):
    assert follow(text, literal) == expected


@pytest.mark.parametrize("text", ['{"name": "', '{"name":"', '{ "name" : "', ' {\n"name":\n"'])
def test_a_pattern_takes_white_space_as_it_comes(text):
    assert re.fullmatch(lenient('{"name": "'), text)
    assert not re.fullmatch(lenient('{"name": "'), text.replace("name", "na me"))
