"""ahead.py: what is told of a growing text is what the whole text comes to, whatever its tokenizer and its parts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.backends.ahead import Ahead, begins_afresh, last_safe_cut
from engine.backends.vocabulary import Span, Vocabulary
from tests.tiny import make_tokenizer

# The words that the big families cut text into.
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
CORPUS = [
    'The output of the tool is 123 and 4567.\nfoo bar\n  {"key": [1, 2]}\nin put input, it\'s  two\n\nlines ' * 40
]


def byte_level(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As Llama 2's: a beginning is marked like a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


KINDS = {"gpt2": make_tokenizer, "qwen": lambda: byte_level(QWEN), "llama3": lambda: byte_level(LLAMA3)}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["in", "put", " ", "  ", "\n", "\r\n", "it's", "12", "345", '{"a": ', "}", ",", "é", "<|im_end|>"]
        ),
        st.text(max_size=6),
    ),
    min_size=1,
    max_size=40,
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request):
    return Vocabulary(KINDS[request.param]().to_str().encode())


def spans(text: str) -> list[Span]:
    return [Span("<|im_start|>tool\n", True), Span(text, False)]


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_any_parts_of_any_text_come_to_the_tokens_of_the_whole(vocabulary, text, cuts):
    assert begins_afresh(vocabulary.encode)
    ahead = Ahead(vocabulary, tells_text=True)
    whole = vocabulary.encode_spans([*spans(text), Span("<|im_end|>\n", True)])
    told: list[int] = []
    for cut in [*sorted(cuts), len(text)]:
        before, told = told, ahead.tell(spans(text[:cut]))
        assert told[: len(before)] == before
        assert told == whole[: len(told)]


def test_nearly_all_of_a_plain_text_is_told(vocabulary):
    text = "The rows of the table are as follows\n" * 50
    whole = vocabulary.encode_spans(spans(text))
    assert len(Ahead(vocabulary, tells_text=True).tell(spans(text))) >= len(whole) - 12


def test_what_is_told_is_encoded_once(vocabulary, monkeypatch):
    encoded = []
    ahead = Ahead(vocabulary, tells_text=True)
    real = vocabulary.encode
    monkeypatch.setattr(vocabulary, "encode", lambda text: encoded.append(text) or real(text))
    text = "some words of a text "
    for count in range(1, 100):
        ahead.tell(spans(text * count))
    assert sum(map(len, encoded)) < 100 * len(text)


def test_another_text_is_begun_with(vocabulary):
    ahead = Ahead(vocabulary, tells_text=True)
    for text in ["one text that is told", "another text that is told", "one"]:
        told = ahead.tell(spans(text))
        assert told == Ahead(vocabulary, tells_text=True).tell(spans(text))


def test_a_tokenizer_that_marks_beginnings_is_found_out_and_tells_no_text():
    vocabulary = Vocabulary(sentence_piece().to_str().encode())
    assert not begins_afresh(vocabulary.encode)
    told = Ahead(vocabulary, tells_text=False).tell(spans("some words of a text"))
    assert told == vocabulary.encode_spans([Span("<|im_start|>", True)])


@pytest.mark.parametrize(
    ("text", "cut"),
    [("", 0), ("input", 0), ("in put", 2), ("in  put", 0), ("in ", 0), ("a b c", 3), ("é b", 0), ("a\nb", 1),
     ("}\nb", 0), ("a\n\nb", 0), ("a é", 0), (json.dumps({"a": 1}), 5)],
)  # fmt: skip
def test_safe_places(text, cut):
    assert last_safe_cut(text, 0) == cut
