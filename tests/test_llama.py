"""llama.py and linears.py against the stock transformers forward, for each of the shapes that it takes.

What both step loops have to do: test_steps.py.
"""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from engine.backends.linears import PackedLinear, PlainLinear, make_linear, num_rows_for
from engine.backends.llama import Llama, is_llama_like
from tests.stepping import IDS, expected, feed
from tests.tiny import VOCAB_SIZE
from tests.tiny_model import make_network

SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=32)),
    "llama3 rope": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LLAMA3)),
    "every head its own": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": 4})),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
}


def network(kind: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return KINDS[kind]().to(dtype).eval()


@pytest.fixture(scope="module")
def stock():
    return make_network()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [(), (100, 1, 1), (50, 50)])
def test_it_computes_what_the_stock_model_does(kind, chunks):
    assert is_llama_like(network(kind))
    row = feed(model := Llama(network(kind), packed=False), model.new_kv(), IDS[:150], *chunks)
    assert row == pytest.approx(expected(network(kind), IDS[:150]), abs=3e-4)


def test_packed_bfloat16_is_as_near_to_float32_as_the_stock_model_is(stock):
    exact, near = expected(stock, IDS[:60]), expected(make_network(torch.bfloat16), IDS[:60])
    ours = feed(model := Llama(make_network(torch.bfloat16), packed=True), model.new_kv(), IDS[:60])
    assert np.abs(ours - exact).max() < 1.5 * np.abs(near - exact).max()
    assert np.array_equal(ours, feed(model, model.new_kv(), IDS[:60]))
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 4), (3, 4), (4, 4), (15, 15), (16, 16), (17, 32), (250, 256), (256, 256)]
)
def test_rows_are_padded_to_few_numbers(count, rows):
    assert num_rows_for(count) == rows


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}},
        {"sliding_window": 16},
    ],
)
def test_what_it_cannot_do_is_left_to_the_stock_code(fields):
    config = MistralConfig(**SHAPE | {"sliding_window": None} | fields)
    assert not is_llama_like(MistralForCausalLM(config))


@pytest.mark.parametrize("packed", [False, True])
def test_layers_side_by_side_are_one(packed):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if packed else torch.float32
    layers = [torch.nn.Linear(32, size, dtype=dtype) for size in (16, 48)]
    rows, residual = torch.randn(3, 32, dtype=dtype), torch.randn(3, 64, dtype=dtype)
    with torch.inference_mode():
        want = torch.cat([layer(rows) for layer in layers], -1)
        one = make_linear(layers, packed=packed)
        assert isinstance(one, PackedLinear if packed else PlainLinear)
        assert torch.allclose(one(rows), want, atol=1e-2 if packed else 1e-6)
        assert torch.allclose(one.plus(rows, residual), want + residual, atol=2e-2 if packed else 1e-6)


def test_layers_with_and_without_bias_cannot_be_one():
    with pytest.raises(ValueError, match="bias"):
        make_linear([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)], packed=False)
