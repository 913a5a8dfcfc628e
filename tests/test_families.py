"""families.py: which template is which family, and what their values promise."""

import pytest

from engine.backends.families import HERMES, HERMES_IN_TEXT, SMOLLM2, describe_tools, family_of
from tests import tiny


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("You are a helpful AI assistant named SmolLM", SMOLLM2),
        (tiny.SMOLLM, SMOLLM2),
        (tiny.HERMES, HERMES),
        (tiny.PLAIN, HERMES_IN_TEXT),
        ("{{ tools }} <|tool|>", HERMES_IN_TEXT),
    ],
)
def test_the_template_tells_the_family(template, family):
    assert family_of(template) is family


def test_tools_are_shown_with_the_tags_that_the_parser_looks_for():
    text = describe_tools(SMOLLM2, ['{"a": 1}', '{"b": 2}'])
    assert '<tools>\n{"a": 1}\n{"b": 2}\n</tools>' in text
    assert f'{SMOLLM2.calls.open}\n{{"name": <function-name>' in text


@pytest.mark.parametrize("family", [HERMES, HERMES_IN_TEXT, SMOLLM2])
def test_every_tag_is_markup(family):
    assert {*family.calls.tags, *(family.reasoning or ())} <= set(family.markup)
