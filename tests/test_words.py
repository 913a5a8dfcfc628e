"""words.py: texts encoded word by word get the ids that the tokenizer itself gives them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from engine.backends.vocabulary import Vocabulary
from engine.backends.words import MAX_WORD_CHARS, WordEncoder, word_pattern
from tests.tiny import make_tokenizer

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def byte_level(*, use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split_by(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, byte_level(use_regex=False)])


PRE_TOKENIZERS = {"gpt2": byte_level(use_regex=True), "qwen": split_by(QWEN), "llama": split_by(LLAMA)}


def as_json(pre_tokenizer: Any) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    return json.loads(tokenizer.to_str())["pre_tokenizer"]


ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
# What the expressions tell apart, more often than chance would.
TRICKY = st.lists(
    st.sampled_from(
        ["'s", "'LL", "'", " ", "  ", "\n", "\r\n", "\t", "ab", "C", "12", "1234", "_", "-=", "\x1c", "\x0b", "\0"]
    )
).map("".join)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=ASCII | TRICKY)
def test_any_ascii_text_is_split_as_the_tokenizer_splits_it(name: str, text: str) -> None:
    pre_tokenizer = PRE_TOKENIZERS[name]
    pattern = word_pattern(as_json(pre_tokenizer))
    assert pattern is not None
    pieces = [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]
    assert pattern.findall(text) == pieces


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        as_json(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        as_json(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        as_json(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])),
        as_json(split_by(r"\s+")),
        as_json(pre_tokenizers.Metaspace()),
    ],
)
def test_other_tokenizers_are_left_alone(pre_tokenizer: Any) -> None:
    assert word_pattern(pre_tokenizer) is None


# --- in a vocabulary ---------------------------------------------------------------------------------------------


def loaded(name: str, *, tags: bool = True, normalizer: Any = None) -> tuple[Vocabulary, Tokenizer]:
    """A vocabulary and a tokenizer of the same file; the tags are tokens that are no control tokens."""
    tokenizer = make_tokenizer(tags=tags)
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.encode_special_tokens = True
    return Vocabulary(tokenizer.to_str().encode()), tokenizer


VOCABULARIES = {name: loaded(name) for name in PRE_TOKENIZERS}
ANY = st.lists(
    ASCII | TRICKY | st.sampled_from(["<tool_call>", "<|im_end|>", "é", "°C", "語", "hello world", "x" * 40])
)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(parts=ANY)
def test_any_text_gets_the_ids_of_the_tokenizer(name: str, parts: list[str]) -> None:
    vocabulary, tokenizer = VOCABULARIES[name]
    text = "".join(parts)
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.encode(text) == expected
    assert vocabulary.encode(text) == expected  # now that its words are known


def test_a_normalizer_that_may_change_ascii_keeps_words_out() -> None:
    vocabulary, tokenizer = loaded("gpt2", normalizer=normalizers.Lowercase())
    assert vocabulary.encode("Hello World") == tokenizer.encode("Hello World", add_special_tokens=False).ids


# --- what is kept ------------------------------------------------------------------------------------------------


class Counted:
    """A tokenizer's model that notes what it was asked for; a word's ids are its characters."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def tokenize(self, word: str) -> list[Any]:
        self.asked.append(word)
        return [SimpleNamespace(id=ord(char)) for char in word]


def encoder(counted: Counted) -> WordEncoder:
    pattern = word_pattern(as_json(PRE_TOKENIZERS["gpt2"]))
    assert pattern is not None
    return WordEncoder(pattern, counted, {})


def test_each_word_is_encoded_once() -> None:
    counted = Counted()
    words = encoder(counted)
    for text in ("one two", "two one two", "one three four"):
        assert bytes(words.encode(text) or []).decode() == text
    assert counted.asked == ["one", " two", "two", " one", " three", " four"]


def test_text_with_a_long_word_is_left_to_the_tokenizer() -> None:
    words, word = encoder(Counted()), "x" * MAX_WORD_CHARS
    assert words.encode(f"a {word[1:]}") is not None
    assert words.encode(f"a {word}") is None
    assert words.encode("") == []
