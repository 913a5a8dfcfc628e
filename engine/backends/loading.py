"""A model's folder to a model that is ready: which code takes it through a step, on what device, in what dtype.

What is not told is found out (see probe.py): bf16 where the processor multiplies it as quickly as fp32, as many threads
as help. On a GPU there is nothing to find out.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM

from engine.backends.linears import PackedLinear, PlainLinear
from engine.backends.llama import Llama, is_llama_like
from engine.backends.model import Model
from engine.backends.probe import quickest, thread_counts

DType = Literal["auto", "bfloat16", "float32"]
Progress = Callable[[str, int, int], None]

_DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}

# Kernels are chosen by shape and compiled at first use: a prompt, a token, a batch of tokens.
_WARM_UP: Final = ([[0] * 32], [[0]], [[0], [0]])

# bf16 halves what a token reads and what its KV takes, so it is worth a loss; without hardware for it (AVX-512 BF16,
# AMX) a product takes 5 to 20 times as long.
_DTYPE_MARGIN: Final = 2.0
_THREADS_MARGIN: Final = 1.15


class NoDevice(Exception):
    """The device that was asked for is not there."""


class Loaded(Protocol):
    """What `load` returns: a `model.Model` or what does as it does."""

    vocab_size: int
    kv_bytes_per_token: int

    def new_kv(self) -> Any: ...
    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> NDArray[np.float32]: ...


def load(folder: Path, *, dtype: DType, threads: int, device: str, progress: Progress) -> Loaded:
    """Load a model folder (config.json and safetensors). Raises OSError, ValueError, UnsupportedModel or NoDevice.

    threads: 0 to find out. device: `auto` (the first GPU if there is one), `cpu` or as torch writes it. progress:
    called with a stage, and how many of its units are done, of how many.
    """
    where = find_device(device)
    cores = os.cpu_count() or 1
    torch.set_num_threads(threads or cores)
    chosen = choose_dtype(dtype, where)
    progress("weights", 0, 1)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=chosen, local_files_only=True)
    progress("weights", 1, 1)
    packed = where.type == "cpu" and chosen is torch.bfloat16 and torch.backends.mkldnn.is_available()
    model = make_model(network.to(where), packed=packed)
    progress("warm-up", 0, 1)
    for batch in _WARM_UP:
        _try(model, batch)
    if not threads and where.type == "cpu":
        torch.set_num_threads(quickest(thread_counts(cores), lambda n: _step_s(model, n), margin=_THREADS_MARGIN))
    progress("warm-up", 1, 1)
    return model


def make_model(network: nn.Module, *, packed: bool) -> Loaded:
    """The quickest code for this network. Raises UnsupportedModel."""
    network.eval().requires_grad_(False)
    return Llama(network, packed=packed) if is_llama_like(network) else Model(network, packed=packed)


def find_device(name: str) -> torch.device:
    """The device of this name. Raises NoDevice."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NoDevice(f"'{name}' is no device: use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise NoDevice(f"There is no device {name}: torch sees {torch.cuda.device_count()} GPUs.")
    return device


def choose_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """What to compute in."""
    if dtype != "auto":
        return _DTYPES[dtype]
    if device.type != "cpu":
        return torch.bfloat16
    return quickest([torch.bfloat16, torch.float32], _product_s, margin=_DTYPE_MARGIN)


def _product_s(dtype: torch.dtype) -> float:
    """Seconds of a product of a prompt's chunk with a small model's weights: 5 to 10 ms."""
    weight = torch.ones(1536, 576, dtype=dtype)
    is_packed = dtype is torch.bfloat16 and torch.backends.mkldnn.is_available()
    linear = PackedLinear(weight, None) if is_packed else PlainLinear(weight, None)
    rows = torch.ones(256, 576, dtype=dtype)
    with torch.inference_mode():
        linear(rows)
        began = time.perf_counter()
        for _ in range(4):
            linear(rows)
    return time.perf_counter() - began


def _step_s(model: Loaded, threads: int) -> float:
    """Seconds of a prompt's chunk and of some tokens, in the proportion of a run's."""
    torch.set_num_threads(threads)
    _try(model, [[0]])  # the pool of threads is made anew
    began = time.perf_counter()
    _try(model, [[0] * 32])
    for _ in range(2):
        _try(model, [[0]])
    return time.perf_counter() - began


def _try(model: Loaded, batch: Sequence[Sequence[int]]) -> None:
    model.step([(model.new_kv(), ids) for ids in batch])
