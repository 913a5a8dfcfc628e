"""Any Hugging Face sequence-classification model, as a function from a text to the scores of its labels.

A text that is longer than the model can take is scored in windows that overlap, and the highest score of each label
counts: what is looked for may be anywhere in it.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

Progress = Callable[[str, int, int], None]

_MAX_WINDOW: Final = 1024  # tokens: attention grows with the square, so longer windows cost more and tell no more
_MAX_BATCH: Final = 8  # windows at once; guessed, not measured


class Scorer:
    """A loaded model. All calls must come from one thread (see backends/model.py)."""

    def __init__(self, network: nn.Module, tokenizer: Tokenizer, max_tokens: int) -> None:
        """max_tokens: that the model can take at once, special ones included."""
        config = network.config
        self.labels: list[str] = [config.id2label[index] for index in range(config.num_labels)]
        self._network = network.eval().requires_grad_(False)
        self._activation = _activation(config)
        self._pad_id: int | None = config.pad_token_id
        self._tokenizer = tokenizer
        self._tokenizer.enable_truncation(max_tokens, stride=max_tokens // 4)
        self._tokenizer.no_padding()

    def score(self, text: str) -> dict[str, float]:
        """The score of each label, from 0 to 1."""
        encoding = self._tokenizer.encode(text)
        windows = [encoding, *encoding.overflowing]
        scores = torch.cat([self._forward(batch) for batch in self._batches(windows)])
        return dict(zip(self.labels, scores.amax(0).tolist(), strict=True))

    def _batches(self, windows: Sequence[Encoding]) -> Iterator[Sequence[Encoding]]:
        """A model without a padding token takes one at a time."""
        size = 1 if self._pad_id is None else _MAX_BATCH
        for start in range(0, len(windows), size):
            yield windows[start : start + size]

    def _forward(self, windows: Sequence[Encoding]) -> Tensor:
        """[windows, labels] scores."""
        longest = max(len(window.ids) for window in windows)
        ids = torch.full((len(windows), longest), self._pad_id or 0)
        mask = torch.zeros((len(windows), longest), dtype=torch.long)
        for row, window in enumerate(windows):
            ids[row, : len(window.ids)] = torch.tensor(window.ids)
            mask[row, : len(window.ids)] = 1
        with torch.inference_mode():
            logits = self._network(input_ids=ids, attention_mask=mask).logits
        return self._activation(logits.float())


def load_scorer(folder: Path, *, threads: int, progress: Progress) -> Scorer:
    """The model in a folder. Raises what transformers raises when there is none."""
    torch.set_num_threads(threads)
    progress("weights", 0, 1)
    network = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    progress("weights", 1, 1)
    scorer = Scorer(network, Tokenizer.from_file(str(folder / "tokenizer.json")), _max_tokens(folder, network.config))
    progress("warm-up", 0, 1)
    scorer.score("warm-up")
    progress("warm-up", 1, 1)
    return scorer


def _activation(config: Any) -> Callable[[Tensor], Tensor]:
    """Labels that exclude each other share one; others have one each."""
    is_independent = config.num_labels == 1 or config.problem_type == "multi_label_classification"
    return torch.sigmoid if is_independent else lambda logits: torch.softmax(logits, -1)


class _TokenizerConfig(msgspec.Struct):
    model_max_length: float | None = None  # 1e30 where nobody has said


def _max_tokens(folder: Path, config: Any) -> int:
    """How many tokens the model can take, as its configuration and its tokenizer's have it."""
    file = folder / "tokenizer_config.json"
    said = msgspec.json.decode(file.read_bytes(), type=_TokenizerConfig) if file.is_file() else _TokenizerConfig()
    # Roberta's positions begin at 2, which its configuration counts and its tokenizer does not.
    num_positions = getattr(config, "max_position_embeddings", None) or 512
    return int(min(said.model_max_length or num_positions, num_positions - 2, _MAX_WINDOW))
