"""expression.py: what a stream must know of a pattern, and which patterns it cannot take."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.safety.expression import compile_source, parse_expression

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\x61", r"\pL", r"[[:alpha:]]", r"[]b\]]", r"\w", "ab"])
QUANTIFIERS = st.sampled_from(["", "", "?", "{2}", "{1,2}", "{0,3}", "??", "{1,2}?"])


def patterns() -> st.SearchStrategy[str]:
    """Bounded patterns over texts of a and b."""
    repeated = st.builds(lambda atom, count: f"(?:{atom}){count}", ATOMS, QUANTIFIERS)
    return st.recursive(
        repeated,
        lambda inner: st.one_of(
            st.builds(str.__add__, inner, inner),
            st.builds(lambda one, other, count: f"({one}|{other}){count}", inner, inner, QUANTIFIERS),
        ),
        max_leaves=5,
    )


def fullmatches(source: str, text: str) -> bool:
    return compile_source(source).fullmatch(text) is not None


TEXTS = ["".join(letters) for length in range(7) for letters in product("ab", repeat=length)]


@given(patterns())
def test_beginnings_are_what_more_text_makes_a_match_of(pattern: str) -> None:
    try:
        expression = parse_expression(pattern)
    except ValueError as error:
        assert "empty text" in str(error)
        return
    matches = [text for text in TEXTS if fullmatches(pattern, text)]
    assert matches == [text for text in TEXTS if fullmatches(expression.source, text)]
    assert all(len(match) <= expression.longest for match in matches)
    beginnings = {match[:length] for match in matches for length in range(len(match) + 1)}
    assert all(fullmatches(expression.beginnings, text) for text in beginnings)
    if expression.longest <= 6:  # else a text may begin a match that is too long to be in the list
        assert {text for text in TEXTS if fullmatches(expression.beginnings, text)} == beginnings


@pytest.mark.parametrize(
    ("pattern", "longest", "has_boundary"),
    [
        ("abc", 3, False),
        (r"\bsk-[A-Za-z0-9]{20,40}", 43, True),
        (r"a\B", 1, True),
        ("(?:a|bcd){2}e?", 7, False),
        (r"\x{1F600}\p{Greek}\.\-\n", 5, False),
        ("a{", 2, False),
        ("a{,3}", 5, False),
        ("[^]x]{2}", 2, False),
        ("é日", 2, False),
        ("(?:ab){0}c", 1, False),
    ],
)
def test_longest_match(pattern: str, longest: int, has_boundary: bool) -> None:
    expression = parse_expression(pattern)
    assert (expression.longest, expression.has_boundary) == (longest, has_boundary)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("ab*", "at character 2, '*', which has no upper bound"),
        ("ab+", "at character 2, '+', which has no upper bound"),
        ("ab{2,}c", "at character 2, '{2,}', which has no upper bound; write {2,100}"),
        ("^a", "at character 0, '^': a stream has no lines"),
        ("a$", "at character 1, '$'"),
        (r"a\z", r"'\z', which is not supported"),
        (r"\Qa.b\E", r"'\Q', which is not supported"),
        (r"\C", r"'\C', which is not supported"),
        ("(?i)a", "a group with a name or flags"),
        ("(?P<n>a)", "a group with a name or flags"),
        ("a?", "matches the empty text"),
        ("", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(a", "missing )"),
        ("a)", "unexpected )"),
        ("[a", "missing ]"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid perl operator"),
        ("(?:a{100}){100}", "invalid repetition size"),
    ],
)
def test_what_a_stream_cannot_take_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_expression(pattern)
