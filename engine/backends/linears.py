"""Linear layers for inference: in oneDNN's blocked order where that pays (bf16 on a CPU), plain elsewhere.

A stock bf16 layer brings its weight into that order on every call, which is three quarters of a step's time (37
against 26 ms a token). Results are bit-identical.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# oneDNN compiles a kernel for each number of rows, which takes milliseconds, and keeps a thousand of them at half a MB.
_LEAST: Final = 4
_EXACT: Final = 16
_GRAIN: Final = 16


def num_rows_for(count: int) -> int:
    """How many rows to make of so many in a packed layer: with padding there are few numbers, and as few kernels.

    From two rows on, a row's results do not depend on how many others there are, bit for bit; a row alone is summed up
    in another order. Four take less time than one, two or three (a step of the default model 19.8 ms, not 22.4).
    """
    return max(_LEAST, count) if count <= _EXACT else -(-count // _GRAIN) * _GRAIN


class Linear(Protocol):
    """rows: [n, in]; returns [n, out]."""

    def __call__(self, rows: Tensor) -> Tensor: ...

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        """The product added to `residual` [n, out]."""


class PlainLinear:
    """Any dtype, any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self._weight, self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return residual + self(rows)


class PackedLinear:
    """bf16 on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return output

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        """The sum is rounded once, not twice."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self._weight, self._bias, "add")
        return output


def make_linear(layers: Sequence[nn.Linear], *, packed: bool) -> Linear:
    """One layer that returns what these return of the same rows, side by side."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) != len(layers):  # Qwen has biases for queries, keys and values, and none elsewhere
        raise ValueError("some of the layers have a bias and some have none")
    bias = torch.cat([bias.detach() for bias in biases]) if biases else None
    return PackedLinear(weight, bias) if packed else PlainLinear(weight, bias)
