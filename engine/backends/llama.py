"""The quick way through models of Llama's shape: the same weights as the stock model, with a step written by hand.

A step of a small model on a CPU is half arithmetic and half getting from one small operation to the next. So there
are fewer of them: query, key and value come from one product and gate and up from another, residuals are added within
the products, positions are looked up in a table, and the keys and values of all layers lie in one tensor, of which a
step cuts the views it needs at once. Attention is by sequence, as in `ragged.py`, without padding.

Numbers differ from the stock model's in the last bits, since sums round elsewhere; for one and the same batch they are
the same on every run.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.backends.linears import Linear, make_linear, num_rows_for
from engine.backends.stacked_kv import StackedKV

# Their stock code is Llama's but for biases, which the weights tell.
_MODEL_TYPES: Final = {"llama", "mistral", "qwen2"}


class _Layer(NamedTuple):
    norm_in: Tensor
    qkv: Linear
    out: Linear
    norm_mlp: Tensor
    gate_up: Linear
    down: Linear


class _Part(NamedTuple):
    """A sequence's rows of the batch, and views of its KV for each layer: where new ones go, and all up to them."""

    start: int
    num_ids: int
    target: Sequence[Tensor]  # [2, kv heads, count, dim]
    keys: Sequence[Tensor]  # [1, kv heads, past + count, dim]
    values: Sequence[Tensor]
    mask: Tensor | None  # None: causal from the beginning, or one row that sees all


def is_llama_like(network: nn.Module) -> bool:
    """Whether `Llama` can take this network through its step."""
    config = network.config
    return (
        config.model_type in _MODEL_TYPES
        and config.hidden_act == "silu"
        and getattr(config, "sliding_window", None) is None
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        # Tables hold for every position; a scaling that depends on how long the context has become does not.
        and (getattr(config, "rope_parameters", None) or {}).get("rope_type") in ("default", "linear", "llama3")
    )


class Llama:
    """A Model (see `model.Model`) whose weights are taken out of a stock network."""

    def __init__(self, network: nn.Module, *, packed: bool) -> None:
        """network: one that `is_llama_like`; it is of no use afterwards. packed: bf16 on a CPU only."""
        config = network.config
        self._pads = packed
        self._num_heads = int(config.num_attention_heads)
        self._num_kv_heads = int(config.num_key_value_heads)
        self._dim = int(getattr(config, "head_dim", None) or config.hidden_size // self._num_heads)
        self._eps = float(config.rms_norm_eps)
        self.vocab_size = int(config.vocab_size)
        inner = network.model
        with torch.inference_mode():
            self._embedding = inner.embed_tokens.weight.detach()
            self._norm = inner.norm.weight.detach()
            self._cos, self._sin = self._rotations(inner.rotary_emb, int(config.max_position_embeddings))
            self._head = make_linear([network.lm_head], packed=packed)
            self._layers = [self._layer(layer, packed) for layer in inner.layers]
        self.kv_bytes_per_token = (
            2 * len(self._layers) * self._num_kv_heads * self._dim * self._embedding.element_size()
        )

    def _layer(self, layer: Any, packed: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        made = _Layer(
            layer.input_layernorm.weight.detach(),
            make_linear([attention.q_proj, attention.k_proj, attention.v_proj], packed=packed),
            make_linear([attention.o_proj], packed=packed),
            layer.post_attention_layernorm.weight.detach(),
            make_linear([mlp.gate_proj, mlp.up_proj], packed=packed),
            make_linear([mlp.down_proj], packed=packed),
        )
        for name in ("self_attn", "mlp"):
            setattr(layer, name, None)  # what was copied need not stay in memory until the last layer is done
        return made

    def _rotations(self, rotary: Callable[..., tuple[Tensor, Tensor]], length: int) -> tuple[Tensor, Tensor]:
        """cos and sin by position [length, 1, dim].

        The first half of sin is negated, as `x * cos + swapped(x) * sin` wants it.
        """
        positions = torch.arange(length, device=self._embedding.device)[None]
        cos, sin = rotary(self._embedding[:1], positions)
        half = self._dim // 2
        return cos[0][:, None], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None]

    def new_kv(self) -> StackedKV:
        """The KV of an empty sequence."""
        return StackedKV(len(self._layers), self._num_kv_heads, self._dim, self._embedding)

    def step(self, work: Sequence[tuple[StackedKV, Sequence[int]]]) -> NDArray[np.float32]:
        """See `model.Model.step`."""
        with torch.inference_mode():
            logits = self._step(work)
        for kv, ids in work:
            kv.advance(len(ids))
        rows: NDArray[np.float32] = logits.float().cpu().numpy()
        return rows

    def _step(self, work: Sequence[tuple[StackedKV, Sequence[int]]]) -> Tensor:
        device = self._embedding.device
        parts, ids, positions = self._parts(work)
        if self._pads:
            padding = [0] * (num_rows_for(len(ids)) - len(ids))
            ids, positions = ids + padding, positions + padding
        place = torch.tensor(positions, device=device)
        cos, sin = self._cos[place], self._sin[place]
        rows = self._embedding[torch.tensor(ids, device=device)]
        width = rows.shape[1]
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(rows, (width,), layer.norm_in, self._eps))
            rows = layer.out.plus(self._attend(index, parts, qkv, cos, sin), rows)
            gate, up = layer.gate_up(F.rms_norm(rows, (width,), layer.norm_mlp, self._eps)).chunk(2, -1)
            rows = layer.down.plus(F.silu(gate).mul_(up), rows)
        last = [part.start + part.num_ids - 1 for part in parts]
        if self._pads:
            last += last[:1] * (num_rows_for(len(last)) - len(last))
        rows = rows[torch.tensor(last, device=device)]
        return self._head(F.rms_norm(rows, (width,), self._norm, self._eps))[: len(parts)]

    def _parts(self, work: Sequence[tuple[StackedKV, Sequence[int]]]) -> tuple[list[_Part], list[int], list[int]]:
        parts: list[_Part] = []
        ids: list[int] = []
        positions: list[int] = []
        for kv, new_ids in work:
            past, count = kv.length, len(new_ids)
            target, keys, values = kv.views(count)
            mask = None
            if past and count > 1:
                mask = torch.ones(count, past + count, dtype=torch.bool, device=self._embedding.device).tril(past)
            parts.append(_Part(len(ids), count, target, keys, values, mask))
            ids.extend(new_ids)
            positions.extend(range(past, past + count))
        return parts, ids, positions

    def _attend(self, index: int, parts: list[_Part], qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer's attention. qkv: [tokens, (heads + 2 kv heads) * dim]. Returns [tokens, heads * dim]."""
        heads, kv_heads, half = self._num_heads, self._num_kv_heads, self._dim // 2
        split = qkv.view(-1, heads + 2 * kv_heads, self._dim)
        turning = split[:, : heads + kv_heads]
        swapped = torch.cat([turning[..., half:], turning[..., :half]], -1)
        turning.mul_(cos).addcmul_(swapped, sin)  # in place, so that keys stay beside their values
        outputs = []
        for part in parts:
            end = part.start + part.num_ids
            new = split[part.start : end, heads:].view(part.num_ids, 2, kv_heads, self._dim)
            part.target[index].copy_(new.permute(1, 2, 0, 3))
            query = split[part.start : end, :heads]
            attend = self._attend_one if part.num_ids == 1 else self._attend_many
            outputs.append(attend(query, part.keys[index], part.values[index], part.mask))
        if num_padding := qkv.shape[0] - end:
            outputs.append(qkv.new_zeros(num_padding, heads * self._dim))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_one(self, query: Tensor, keys: Tensor, values: Tensor, _: Tensor | None) -> Tensor:
        """One new token: its heads become query rows of the kv head they share, so keys need not be repeated."""
        rows = query.view(1, self._num_kv_heads, -1, self._dim)
        return F.scaled_dot_product_attention(rows, keys, values).view(1, -1)

    def _attend_many(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        output = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self._num_heads != self._num_kv_heads,
        )
        return output[0].transpose(0, 1).reshape(query.shape[0], -1)
