"""sorted_list.py: what goes in once is in, in order, however often it comes."""

from hypothesis import given
from hypothesis import strategies as st

from engine.sorted_list import add_to, is_in


@given(values=st.lists(st.text(max_size=2), max_size=30), asked=st.text(max_size=2))
def test_it_is_a_set(values: list[str], asked: str) -> None:
    ordered: list[str] = []
    for value in values:
        add_to(ordered, value)
    assert ordered == sorted(set(values))
    assert is_in(ordered, asked) == (asked in values)
