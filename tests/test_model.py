"""model.py and ragged.py against the stock transformers forward; what both step loops have to do: test_steps.py."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MistralConfig, MistralForCausalLM

from engine.backends import model as model_module
from engine.backends.model import Model, PackedLinear, UnsupportedModel
from tests.stepping import IDS, expected, feed
from tests.tiny import CONTEXT_WINDOW, VOCAB_SIZE
from tests.tiny_model import make_network


@pytest.fixture(scope="module")
def stock():
    return make_network()


@pytest.fixture(scope="module")
def model():
    return Model(make_network(), packed=False)


def test_a_fresh_prompt_is_bit_identical_to_stock(model, stock):
    assert np.array_equal(feed(model, model.new_kv(), IDS[:300]), expected(stock, IDS[:300]))


@pytest.mark.parametrize("chunks", [(1,), (299,), (100, 100), (1, 1, 1), (256, 1, 1), (7, 200)])
def test_chunks_equal_one_pass(model, stock, chunks):
    row = feed(model, model.new_kv(), IDS[:300], *chunks)
    assert row == pytest.approx(expected(stock, IDS[:300]), abs=2e-4)


def test_sliding_windows_are_kept():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    )
    network = MistralForCausalLM(config).eval()
    want = expected(network, IDS[:60])
    model = Model(network, packed=False)
    for chunks in [(), (20, 20), (59,), (30, 1, 1)]:
        assert feed(model, model.new_kv(), IDS[:60], *chunks) == pytest.approx(want, abs=2e-4)


def test_packed_linears_are_bit_identical_in_bfloat16():
    stock = make_network(torch.bfloat16)
    model = Model(make_network(torch.bfloat16), packed=True)
    assert isinstance(model._network.lm_head, PackedLinear)
    with torch.inference_mode():
        want = stock(torch.tensor([IDS[:60]]), logits_to_keep=1).logits[0, -1].float().numpy()
    assert np.array_equal(feed(model, model.new_kv(), IDS[:60]), want)


def test_the_cache_is_measured_from_the_config(model):
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert model.vocab_size == VOCAB_SIZE


def test_what_attention_cannot_do_is_refused():
    config = LlamaConfig(attn_logit_softcapping=30.0, max_position_embeddings=CONTEXT_WINDOW)
    with pytest.raises(UnsupportedModel, match="capped"):
        model_module._check_supported(config)
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        model_module._check_supported(LlamaConfig(num_hidden_layers=1, layer_types=["linear_attention"]))
