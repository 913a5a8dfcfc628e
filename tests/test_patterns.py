"""patterns.py: wherever a text is cut, the same is found, and nothing of it was let out before."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.safety.expression import parse_expression
from engine.safety.patterns import Patterns, Scan
from tests.test_expression import patterns as some_pattern


def compiled(*sources: str, ignore_case: bool = False) -> Patterns:
    return Patterns([parse_expression(source) for source in sources], ignore_case=ignore_case)


def released(patterns: Patterns, pieces: list[str]) -> tuple[str, bool]:
    """What is let out of a text that comes in these pieces, and whether something was found."""
    scan, text, out = Scan(), "", 0
    for piece in pieces:
        scan = patterns.scan(scan, piece, is_last=False)
        if scan.is_found:
            return text[:out], True
        text += piece
        out = len(text) - scan.num_undecided
        assert scan.num_undecided < patterns.longest
    if patterns.scan(scan, "", is_last=True).is_found:
        return text[:out], True
    return text, False


def cut(text: str, places: set[int]) -> list[str]:
    ends = [0, *sorted(place for place in places if place <= len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


BOUNDED = [r"\bab\b", r"ab\B", r"a b|\bb", r"(?:a|b ){2}\b", "a[ ab]{1,3}b"]


@given(
    st.lists(st.one_of(st.sampled_from(BOUNDED), some_pattern()), min_size=1, max_size=3),
    st.text("ab ", max_size=12),
    st.sets(st.integers(1, 11)),
)
def test_a_match_is_found_wherever_the_text_is_cut_and_none_of_it_is_let_out(
    sources: list[str], text: str, places: set[int]
) -> None:
    try:
        patterns = compiled(*sources)
    except ValueError as error:
        assert "empty text" in str(error)
        return
    out, is_found = released(patterns, cut(text, places))
    starts = [
        start for source in sources for start in range(len(text)) if re.compile(re2_as_re(source)).match(text, start)
    ]
    assert is_found == bool(starts)
    assert out == (text[: len(out)] if starts else text)
    assert not starts or len(out) <= min(starts)


def re2_as_re(source: str) -> str:
    """The same for the standard library, as far as texts of a, b and blanks go."""
    return source.replace(r"\pL", "[ab]").replace("[[:alpha:]]", "[ab]")


SECRET = "sk-0123456789abcdefghij"


@pytest.mark.parametrize("length", range(1, 30))
def test_every_way_to_cut_a_key_in_pieces_of_one_length(length: int) -> None:
    text = f"the key is {SECRET}, and so on"
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    out, is_found = released(compiled(r"\bsk-[a-z0-9]{20}\b"), pieces)
    assert is_found
    assert "the key is ".startswith(out)


def test_only_what_may_begin_a_match_is_held() -> None:
    patterns = compiled("sk-[a-z0-9]{20}")
    scan = patterns.scan(Scan(), "nothing to see", is_last=False)
    assert scan.num_undecided == 0
    scan = patterns.scan(scan, " but this: s", is_last=False)
    assert scan.num_undecided == 1
    scan = patterns.scan(scan, "k-12", is_last=False)
    assert scan.num_undecided == 5
    assert patterns.scan(scan, ".", is_last=False).num_undecided == 0


def test_a_word_boundary_is_decided_by_what_comes_next() -> None:
    patterns = compiled(r"\bab\b")
    after = patterns.scan(Scan(), "ab", is_last=False)
    assert (after.is_found, after.num_undecided) == (False, 2)
    assert patterns.scan(after, " ", is_last=False).is_found
    assert patterns.scan(after, "", is_last=True).is_found
    assert not patterns.scan(after, "c", is_last=False).is_found
    inside = patterns.scan(Scan(), "x", is_last=False)
    assert not patterns.scan(inside, "ab ", is_last=False).is_found


def test_a_match_is_told_once() -> None:
    patterns = compiled("ab")
    found = patterns.scan(Scan(), "ab", is_last=False)
    assert patterns.scan(found, "ab", is_last=False) is found
    assert found.num_undecided == 0


def test_case_is_ignored_on_request() -> None:
    assert compiled("straße", ignore_case=True).scan(Scan(), "STRAßE", is_last=True).is_found
    assert not compiled("straße").scan(Scan(), "STRAßE", is_last=True).is_found


def test_half_a_surrogate_pair_is_a_character_like_others() -> None:
    patterns = compiled("ab")
    scan = patterns.scan(Scan(), "\ud800a", is_last=False)
    assert scan.num_undecided == 1
    assert patterns.scan(scan, "b\udfff", is_last=False).is_found


def test_a_hostile_text_takes_linear_time() -> None:
    """The classic of backtracking engines: exponential there, a few milliseconds here."""
    patterns = compiled("(?:a?){100}a{100}")
    assert not patterns.scan(Scan(), "a" * 99, is_last=True).is_found
    assert patterns.scan(Scan(), "a" * 100, is_last=True).is_found
