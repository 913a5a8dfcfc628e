"""A model small enough for tests: a random Llama of 2 layers, saved as a folder."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny import CONTEXT_WINDOW, STOP_ID, VOCAB_SIZE, save_tokenizer


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
