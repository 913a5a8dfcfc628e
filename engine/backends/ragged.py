"""Attention over sequences of different lengths laid end to end, each with keys and values of its own.

transformers calls an attention function by name; ours gets the flattened batch ([1, heads, all new tokens, dim]) and,
through the model's keyword arguments, the `parts` it consists of. Each part appends its new keys and values to its
sequence's KV and attends to all of them: no padding, no copying of a cache into a batch, no position shifts.

For a fresh sequence the result is bit for bit that of transformers' own sdpa attention.
"""

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.backends.stacked_kv import capacity_for

NAME: Final = "longloop_ragged"


class KV:
    """Keys and values of one sequence, per layer in one growing buffer [2, kv heads, capacity, head dim]."""

    def __init__(self, num_layers: int) -> None:
        self._layers: list[Tensor | None] = [None] * num_layers
        self._length = 0

    @property
    def length(self) -> int:
        """Number of tokens whose keys and values are in."""
        return self._length

    def crop(self, length: int) -> None:
        """Forget what lies beyond `length`; the memory stays for what comes next."""
        self._length = min(self._length, length)

    def copy(self, length: int) -> "KV":
        """Another KV with the first `length` tokens of this one."""
        twin = KV(len(self._layers))
        twin._length = min(self._length, length)
        for index, layer in enumerate(self._layers):
            if layer is not None and twin._length:
                twin._layers[index] = _grown(layer, twin._length, capacity_for(twin._length))
        return twin

    def append(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer with the new ones at the end: two views [kv heads, length + new, head dim].

        keys, values: [kv heads, new, head dim]. `length` stays until `advance`, when all layers have theirs.
        """
        end = self._length + keys.shape[1]
        layer = self._layers[index]
        if layer is None:
            layer = keys.new_empty(2, keys.shape[0], capacity_for(end), keys.shape[2])
        elif layer.shape[2] < end:
            layer = _grown(layer, self._length, capacity_for(end))
        self._layers[index] = layer
        layer[0, :, self._length : end] = keys
        layer[1, :, self._length : end] = values
        return layer[0, :, :end], layer[1, :, :end]

    def advance(self, count: int) -> None:
        """The last `count` tokens are in every layer."""
        self._length += count


def _grown(layer: Tensor, length: int, capacity: int) -> Tensor:
    larger = layer.new_empty(2, layer.shape[1], capacity, layer.shape[3])
    larger[:, :, :length] = layer[:, :, :length]
    return larger


class Part:
    """One sequence's share of a batch: `count` new tokens from `start` of the flattened batch on."""

    def __init__(self, kv: KV, start: int, count: int, device: torch.device) -> None:
        self.kv = kv
        self._device = device
        self.start = start
        self.count = count
        self._mask: Tensor | None = None

    def mask(self, window: int | None) -> Tensor | None:
        """[new, all] bool, True where a new token may look; None for the causal mask of a fresh sequence."""
        past = self.kv.length
        if past == 0 and window is None:
            return None
        if self._mask is None or window is not None:
            ones = torch.ones(self.count, past + self.count, dtype=torch.bool, device=self._device)
            causal = ones.tril(past)
            if window is not None:
                return causal & ones.triu(past - window + 1)
            self._mask = causal  # the same in every layer
        return self._mask


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    parts: list[Part] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function. query: [1, heads, tokens, dim]; returns [1, tokens, heads, dim]."""
    assert parts is not None
    outputs = []
    for part in parts:
        new = slice(part.start, part.start + part.count)
        keys, values = part.kv.append(int(module.layer_idx), key[0, :, new], value[0, :, new])
        if part.count == 1:
            outputs.append(_attend_one(query[0, :, new], keys, values, scaling, sliding_window))
        else:
            outputs.append(_attend_many(query[:, :, new], keys, values, scaling, part.mask(sliding_window)))
    if num_padding := query.shape[2] - new.stop:  # rows of nobody, at the end
        outputs.append(query.new_zeros(1, num_padding, query.shape[1], query.shape[3]))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)), None


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """One new token: its heads become query rows of the kv head they share, 4 to 6 times quicker than repeating keys.

    query: [heads, 1, dim]. Returns [1, 1, heads, dim].
    """
    num_heads, _, dim = query.shape
    num_kv_heads = keys.shape[0]
    if window is not None:
        keys, values = keys[:, -window:], values[:, -window:]
    rows = query.reshape(1, num_kv_heads, num_heads // num_kv_heads, dim)
    return F.scaled_dot_product_attention(rows, keys[None], values[None], scale=scaling).reshape(1, 1, num_heads, dim)


def _attend_many(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None, mask: Tensor | None) -> Tensor:
    """Several new tokens of one sequence. query: [1, heads, new, dim]. Returns [1, new, heads, dim]."""
    output = F.scaled_dot_product_attention(
        query,
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[0],
    )
    return output.transpose(1, 2)


def _no_mask(*_: Any, **__: Any) -> None:
    """Parts make their own masks."""


def register() -> None:
    """Make the attention function known to transformers under NAME."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _no_mask)
