"""llama.py and linears.py against the stock transformers forward, for each of the shapes that it takes."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from engine.backends.linears import PackedLinear, PlainLinear, make_linear, num_rows_for
from engine.backends.llama import Llama, is_llama_like
from engine.backends.model import Model
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


@pytest.fixture(scope="module")
def model():
    return Llama(make_network(), packed=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [(), (100, 1, 1), (50, 50)])
def test_it_computes_what_the_stock_model_does(kind, chunks):
    assert is_llama_like(network(kind))
    row = feed(model := Llama(network(kind), packed=False), model.new_kv(), IDS[:150], *chunks)
    assert row == pytest.approx(expected(network(kind), IDS[:150]), abs=3e-4)


def test_a_batch_of_prompts_and_tokens_equals_each_alone(model, stock):
    kvs = [model.new_kv() for _ in range(4)]
    model.step([(kvs[0], IDS[:50]), (kvs[1], IDS[50:51]), (kvs[2], IDS[100:400])])
    rows = model.step([(kvs[0], IDS[50:51]), (kvs[1], IDS[51:90]), (kvs[2], IDS[400:401]), (kvs[3], IDS[:9])])
    spans = [(0, 51), (50, 90), (100, 401), (0, 9)]
    for row, (start, end) in zip(rows, spans, strict=True):
        assert row == pytest.approx(expected(stock, IDS[start:end]), abs=3e-4)


def test_kv_grows_beyond_its_first_capacity(model, stock):
    kv = model.new_kv()
    assert feed(model, kv, IDS, 500, 10, 1, 1) == pytest.approx(expected(stock, IDS), abs=3e-4)
    assert kv.length == 700


def test_a_cropped_sequence_goes_on_as_if_the_rest_had_never_been(model, stock):
    kv = model.new_kv()
    feed(model, kv, IDS[:300])
    kv.crop(200)
    kv.crop(250)
    row = model.step([(kv, IDS[400:420])])[0]
    assert row == pytest.approx(expected(stock, IDS[:200] + IDS[400:420]), abs=3e-4)


def test_a_copy_goes_its_own_way(model, stock):
    kv = model.new_kv()
    feed(model, kv, IDS[:300])
    twin = kv.copy(250)
    feed(model, kv, IDS[10:20])
    assert feed(model, twin, IDS[400:410]) == pytest.approx(expected(stock, IDS[:250] + IDS[400:410]), abs=3e-4)
    assert model.new_kv().copy(5).length == kv.copy(0).length == 0


def test_packed_bfloat16_is_as_near_to_float32_as_the_stock_model_is(stock):
    exact, near = expected(stock, IDS[:60]), expected(make_network(torch.bfloat16), IDS[:60])
    ours = feed(model := Llama(make_network(torch.bfloat16), packed=True), model.new_kv(), IDS[:60])
    assert np.abs(ours - exact).max() < 1.5 * np.abs(near - exact).max()
    assert np.array_equal(ours, feed(model, model.new_kv(), IDS[:60]))
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize("make", [Llama, Model])
@pytest.mark.parametrize("packed", [False, True])
def test_what_comes_of_a_token_does_not_depend_on_its_neighbours(make, packed):
    """Bit for bit, however many rows a step has; with bf16 as it is served, and with fp32."""
    model = make(make_network(torch.bfloat16 if packed else torch.float32), packed=packed)

    def play(*others: int) -> list[np.ndarray]:
        kv, rows = model.new_kv(), []
        for number, ids in enumerate([IDS[:40], *([id_] for id_ in IDS[40:46])]):
            beside = [(model.new_kv(), IDS[number : number + count]) for count in others]
            rows.append(model.step([*beside, (kv, ids)])[-1])
        return rows

    alone = play()
    for others in [(1,), (1, 1, 1), (7, 1, 200), (300,)]:
        assert all(np.array_equal(row, same) for row, same in zip(play(*others), alone, strict=True)) or not packed


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
