"""logprobs.py: each token goes to the first text that has one of its characters, against the plainest model of that."""

from hypothesis import given
from hypothesis import strategies as st

from engine.backends.chance import Chance
from engine.backends.logprobs import PlacedTokens
from engine.backends.vocabulary import Vocabulary
from engine.content import TokenLogprob, TopLogprob
from tests.tiny import STOP_ID, make_tokenizer

VOCABULARY = Vocabulary(make_tokenizer().to_str().encode())


def chance(number: int) -> Chance:
    return Chance(-float(number))


@given(st.lists(st.integers(0, 4), max_size=20), st.lists(st.booleans(), max_size=60), st.data())
def test_no_token_is_lost_or_comes_twice(sizes, is_text, data):
    """sizes: characters that each token completes. is_text: of each character, whether it turns out to be text."""
    placed, total = PlacedTokens(VOCABULARY), sum(sizes)
    is_text = (is_text + [True] * total)[:total]
    cuts = data.draw(st.lists(st.integers(0, total), max_size=6))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    texts = runs(is_text, cuts)
    expected = [
        next((number for number, (start, end) in enumerate(texts) if start < at + max(size, 1) and at < end), None)
        for at, size in zip(starts, sizes, strict=True)
    ]
    for number, size in enumerate(sizes):
        placed.add(5, chance(number), size)
    for number, (start, end) in enumerate(texts):
        found = [-int(token.logprob) for token in placed.take(end - start, total - end)]
        assert found == [token for token, text in enumerate(expected) if text == number]


def runs(is_text: list[bool], cuts: list[int]) -> list[tuple[int, int]]:
    """Stretches of text, ended by what is none or by a cut."""
    found: list[tuple[int, int]] = []
    for at, here in enumerate(is_text):
        if here and found and found[-1][1] == at and at not in cuts:
            found[-1] = (found[-1][0], at + 1)
        elif here:
            found.append((at, at + 1))
    return found


def test_a_token_that_begins_in_a_tag_comes_with_the_text_behind_it():
    placed = PlacedTokens(VOCABULARY)
    placed.add(5, chance(1), 3)  # the tag but for its last character
    placed.add(5, chance(2), 4)  # that and three of text
    placed.add(5, chance(3), 2)
    assert [token.logprob for token in placed.take(5, 0)] == [-2, -3]


def test_the_rest_of_a_cut_character_belongs_to_its_tokens():
    placed = PlacedTokens(VOCABULARY)
    placed.add(5, chance(1), 1)
    assert len(placed.take(1, 0)) == 1
    placed.add(5, chance(2), 0)
    placed.add_text(1)
    assert [token.logprob for token in placed.take(1, 0)] == [-2]


def test_tokens_are_written_out_control_tokens_too():
    placed = PlacedTokens(VOCABULARY)
    (a,) = VOCABULARY.encode("a")
    placed.add(a, Chance(-0.5, [(a, -0.5), (STOP_ID, -1.5)]), 1)
    top = [TopLogprob("a", [97], -0.5), TopLogprob("<|im_end|>", list(b"<|im_end|>"), -1.5)]
    assert placed.take(1, 0) == (TokenLogprob("a", [97], -0.5, top),)
