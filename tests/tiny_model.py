"""A model small enough for tests: a random Llama of 2 layers over a byte-level tokenizer, saved as a folder."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STOP_ID = 2
VOCAB_SIZE = 320  # larger than the tokenizer's, as padded vocabularies are
CONTEXT_WINDOW = 4096
_CORPUS = ["hello world, the name of the tool is get_weather and its city is Paris", '{"name": "add", "arguments": {}}']


def make_tokenizer() -> Tokenizer:
    """283-odd ids: 3 specials, 256 bytes, some merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Writes tokenizer.json; returns its path."""
    file = folder / "tokenizer.json"
    make_tokenizer().save(str(file))
    return file


def make_network(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The same weights on every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_WINDOW,
        initializer_range=0.3,  # far apart logits: greedy choices do not hang on the last bit
        bos_token_id=1,
        eos_token_id=STOP_ID,
        dtype=dtype,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def save_model(folder: Path) -> Path:
    """Writes config, weights and tokenizer; returns the folder."""
    make_network().save_pretrained(folder)
    save_tokenizer(folder)
    return folder
