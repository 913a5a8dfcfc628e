"""What both ways through a model (model.py, llama.py) have to do: batches, and KV that grows, is cropped and copied."""

import numpy as np
import pytest
import torch

from engine.backends.llama import Llama
from engine.backends.model import Model
from tests.stepping import IDS, expected, feed
from tests.tiny_model import make_network

NEAR = 3e-4


@pytest.fixture(scope="module")
def stock():
    return make_network()


@pytest.fixture(scope="module", params=[Model, Llama])
def model(request):
    return request.param(make_network(), packed=False)


def test_a_batch_of_prompts_and_tokens_equals_each_alone(model, stock):
    kvs = [model.new_kv() for _ in range(4)]
    model.step([(kvs[0], IDS[:50]), (kvs[1], IDS[50:51]), (kvs[2], IDS[100:400])])
    rows = model.step([(kvs[0], IDS[50:51]), (kvs[1], IDS[51:90]), (kvs[2], IDS[400:401]), (kvs[3], IDS[:9])])
    spans = [(0, 51), (50, 90), (100, 401), (0, 9)]
    for row, (start, end) in zip(rows, spans, strict=True):
        assert row == pytest.approx(expected(stock, IDS[start:end]), abs=NEAR)


def test_kv_grows_beyond_its_first_capacity(model, stock):
    kv = model.new_kv()
    assert feed(model, kv, IDS, 500, 10, 1, 1) == pytest.approx(expected(stock, IDS), abs=NEAR)
    assert kv.length == 700


def test_a_cropped_sequence_goes_on_as_if_the_rest_had_never_been(model, stock):
    kv = model.new_kv()
    feed(model, kv, IDS[:300])
    kv.crop(200)
    kv.crop(250)  # never lengthens
    assert kv.length == 200
    row = model.step([(kv, IDS[400:420])])[0]
    assert row == pytest.approx(expected(stock, IDS[:200] + IDS[400:420]), abs=NEAR)


def test_a_copy_goes_its_own_way(model, stock):
    kv = model.new_kv()
    feed(model, kv, IDS[:300])
    twin = kv.copy(250)
    feed(model, kv, IDS[10:20])
    assert feed(model, twin, IDS[400:410]) == pytest.approx(expected(stock, IDS[:250] + IDS[400:410]), abs=NEAR)
    row = model.step([(kv, IDS[300:301])])[0]
    assert row == pytest.approx(expected(stock, IDS[:300] + IDS[10:20] + IDS[300:301]), abs=NEAR)


def test_a_copy_of_nothing_is_empty(model):
    kv = model.new_kv()
    feed(model, kv, IDS[:10])
    assert model.new_kv().copy(5).length == kv.copy(0).length == 0


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
