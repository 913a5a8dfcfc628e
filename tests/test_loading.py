"""loading.py and probe.py: what a folder becomes, and what is found out about the machine."""

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from engine.backends import loading
from engine.backends.llama import Llama
from engine.backends.loading import NoDevice, choose_dtype, find_device, load, make_model
from engine.backends.model import Model
from engine.backends.probe import quickest, thread_counts
from tests.stepping import IDS, expected, feed
from tests.tiny_model import make_network, save_model

CPU = torch.device("cpu")


def test_load_reports_its_stages(tmp_path):
    stages = []
    folder = save_model(tmp_path)
    model = load(
        folder, dtype="float32", threads=1, device="cpu", progress=lambda stage, done, total: stages.append(stage)
    )
    assert stages == ["weights", "weights", "warm-up", "warm-up"]
    assert feed(model, model.new_kv(), IDS[:30]) == pytest.approx(expected(make_network(), IDS[:30]), abs=3e-4)


def test_what_is_not_told_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: False)
    before = torch.get_num_threads()
    model = load(save_model(tmp_path), dtype="auto", threads=0, device="auto", progress=lambda *_: None)
    assert torch.get_num_threads() in thread_counts(loading.os.cpu_count() or 1)
    torch.set_num_threads(before)
    assert np.isfinite(feed(model, model.new_kv(), IDS[:30])).all()


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises((OSError, ValueError)):
        load(tmp_path, dtype="float32", threads=1, device="cpu", progress=lambda *_: None)


def test_the_quick_way_is_for_those_who_can_take_it():
    assert isinstance(make_model(make_network(), packed=False), Llama)
    config = MistralConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    assert isinstance(make_model(MistralForCausalLM(config), packed=False), Model)


@pytest.mark.parametrize(
    ("name", "num_gpus", "expected"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_a_device_is_found(monkeypatch, name, num_gpus, expected):
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(loading.torch.cuda, "device_count", lambda: num_gpus)
    assert find_device(name) == torch.device(expected)


@pytest.mark.parametrize(("name", "what"), [("cuda", "no device cuda"), ("cuda:3", "cuda:3"), ("gpu", "is no device")])
def test_a_device_that_is_not_there_is_named(monkeypatch, name, what):
    monkeypatch.setattr(loading.torch.cuda, "device_count", lambda: 0)
    with pytest.raises(NoDevice, match=what):
        find_device(name)


def test_bfloat16_is_taken_unless_it_is_much_slower(monkeypatch):
    assert choose_dtype("float32", CPU) is torch.float32
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16
    for bf16_s, expected_dtype in [(1.9, torch.bfloat16), (2.1, torch.float32)]:
        times = {torch.bfloat16: bf16_s, torch.float32: 1.0}
        monkeypatch.setattr(loading, "_product_s", times.__getitem__)
        assert choose_dtype("auto", CPU) is expected_dtype


def test_the_first_candidate_stays_unless_another_is_clearly_quicker():
    assert quickest(["a", "b"], {"a": 1.1, "b": 1.0}.__getitem__, margin=1.2) == "a"
    assert quickest(["a", "b"], {"a": 1.3, "b": 1.0}.__getitem__, margin=1.2) == "b"
    assert quickest(["only"], lambda _: 1 / 0, margin=1.2) == "only"


def test_a_burst_of_a_neighbours_work_does_not_decide():
    tries = iter([9.0, 1.1, 1.0, 9.0, 1.0, 9.0])  # in turn: a, b, a, b, …
    assert quickest(["a", "b"], lambda _: next(tries), margin=1.05) == "a"


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [2, 1]), (8, [8, 4]), (5, [5, 3])])
def test_thread_counts(cores, counts):
    assert thread_counts(cores) == counts
