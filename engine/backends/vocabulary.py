"""A model's vocabulary: text to ids and ids to bytes, from `tokenizer.json` alone (no torch, no transformers).

Text comes in two kinds. Markup is written by a chat template, and its control tokens become their ids. Content comes
from users, tools and earlier turns, and is encoded as plain text whatever it spells, so that nobody can end a turn or
begin another role by typing `<|im_end|>`. Between two control tokens markup and content are encoded as one string, so
harmless text gets exactly the ids that the model was trained on.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from engine.backends.words import WordEncoder, word_pattern

_MAX_WORDWISE: Final = 4096  # characters; a longer text is the tokenizer's, which does not hold the GIL
_SHORT: Final = 64  # characters; longer texts hardly ever come twice
_SPACE: Final = "▁"  # what SentencePiece writes for a space


class Span(msgspec.Struct, frozen=True):
    """A stretch of rendered text. `is_markup` says that control tokens in it mean themselves."""

    text: str
    is_markup: bool


class Vocabulary:
    """Immutable once loaded; shared by all runs of a model and safe to use from several threads."""

    def __init__(self, tokenizer_json: bytes, markup: Iterable[str] = ()) -> None:
        """markup: texts of tokens that are control tokens for us even where the tokenizer calls them ordinary."""
        data = msgspec.json.decode(tokenizer_json)
        added: list[dict[str, Any]] = data.get("added_tokens") or []
        names = set(markup)
        for token in added:
            # The flag is what `encode_special_tokens` goes by; dropping the entries instead would shift other ids.
            token["special"] = token["special"] or token["content"] in names
        self.controls: dict[str, int] = {token["content"]: token["id"] for token in added if token["special"]}
        self.added: dict[str, int] = {token["content"]: token["id"] for token in added}
        self._control_ids = frozenset(self.controls.values())
        self._split = _splitter(self.controls)
        self._plain = Tokenizer.from_str(msgspec.json.encode(data).decode())
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        pattern = word_pattern(data.get("pre_tokenizer")) if _leaves_ascii(data.get("normalizer")) else None
        self._words = WordEncoder(pattern, self._plain.model, _ALPHABET) if pattern else None
        # Tokens that stand for themselves wherever they are, across the borders of words.
        self._unsplit = _splitter(self.added.keys() - self.controls.keys())
        # Templates write the same few pieces between control tokens over and over.
        self._encode_again = lru_cache(1024)(lambda text: tuple(self._encode(text)))
        self._is_byte_level = "ByteLevel" in _decoder_kinds(data.get("decoder"))
        self._added_bytes: dict[int, bytes] = {token["id"]: token["content"].encode() for token in added}
        self.size: int = self._plain.get_vocab_size(with_added_tokens=True)
        self.longest_token: int = max(map(len, self._plain.get_vocab(with_added_tokens=True)), default=1)

    @classmethod
    def load(cls, folder: Path, markup: Iterable[str] = ()) -> "Vocabulary":
        """The vocabulary of the model in `folder`. Raises FileNotFoundError when it has no `tokenizer.json`."""
        return cls((folder / "tokenizer.json").read_bytes(), markup)

    def encode(self, text: str) -> list[int]:
        """The ids of plain content; never a control token."""
        return list(self._encode_again(text)) if len(text) <= _SHORT else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] | None
        ids = self._words.encode(text) if self._words and self._is_wordwise(text) else None
        if ids is None:
            # The batch form with one text: there is no single form that leaves out the offsets, a fifth of the time.
            ids = self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _is_wordwise(self, text: str) -> bool:
        return len(text) <= _MAX_WORDWISE and text.isascii() and not (self._unsplit and self._unsplit.search(text))

    def encode_spans(self, spans: Iterable[Span]) -> list[int]:
        """The ids of rendered text: control tokens in markup as themselves, all else as plain text."""
        ids: list[int] = []
        run: list[str] = []
        for text, is_control in self._pieces(spans):
            if not is_control:
                run.append(text)
                continue
            if run:
                ids += self.encode("".join(run))
                run.clear()
            ids.append(self.controls[text])
        if run:
            ids += self.encode("".join(run))
        return ids

    def open_run(self, spans: Sequence[Span]) -> tuple[list[Span], str]:
        """The spans up to the last control token, and the text after it, which is encoded as one string."""
        text = ""
        for index in range(len(spans) - 1, -1, -1):
            span = spans[index]
            parts = self._split.split(span.text) if span.is_markup and self._split else [span.text]
            text = parts[-1] + text
            if len(parts) > 1:
                return [*spans[:index], Span("".join(parts[:-1]), True)], text
        return [], text

    def _pieces(self, spans: Iterable[Span]) -> Iterable[tuple[str, bool]]:
        for span in spans:
            parts = self._split.split(span.text) if span.is_markup and self._split else [span.text]
            for index, part in enumerate(parts):
                if part:
                    yield part, index % 2 == 1

    def is_control(self, token_id: int) -> bool:
        """Whether the id is a control token: it carries no text of its own."""
        return token_id in self._control_ids

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes the id stands for; they may end inside a character. Empty for ids the model has not got."""
        if token_id in self._added_bytes:
            return self._added_bytes[token_id]
        token: str | None = self._plain.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return b"".join(_BYTES.get(char) or char.encode() for char in token)
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace(_SPACE, " ").encode()


def _splitter(controls: Iterable[str]) -> re.Pattern[str] | None:
    # Longest first: one control token may be the beginning of another.
    names = sorted(controls, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None


def _leaves_ascii(normalizer: dict[str, Any] | None) -> bool:
    """Whether ASCII text comes out of the normalizer as it went in, as far as is known."""
    return normalizer is None or normalizer.get("type") in ("NFC", "NFKC")


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*map(_decoder_kinds, decoder.get("decoders", [])))


def _byte_level_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-in for each byte, reversed (Radford et al. 2019, `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): bytes([byte]) for byte in shown}
    hidden = (byte for byte in range(256) if byte not in shown)
    return alphabet | {chr(256 + index): bytes([byte]) for index, byte in enumerate(hidden)}


_BYTES: Final = _byte_level_alphabet()
_ALPHABET: Final = {byte[0]: char for char, byte in _BYTES.items()}
