"""A sequence-classification model small enough for tests: a random Bert of one layer over a word tokenizer."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "good", "bad", "the", "day", "is", "was"]
LABELS = ["calm", "toxic", "insult"]
MAX_TOKENS = 16


def make_network(**config: object) -> BertForSequenceClassification:
    """The same weights on every call."""
    torch.manual_seed(0)
    fields = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": MAX_TOKENS + 2,
        "initializer_range": 1.0,
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: index for index, label in enumerate(LABELS)},
        "pad_token_id": 0,
    }
    return BertForSequenceClassification(BertConfig(**(fields | config))).eval()


def make_tokenizer() -> Tokenizer:
    """Words; a text is [CLS] … [SEP]."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def save_classifier(folder: Path, **config: object) -> Path:
    """Writes config, weights and tokenizer; returns the folder."""
    make_network(**config).save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
