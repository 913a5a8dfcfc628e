"""The quick way through models of Llama's shape: the same weights as the stock model, with a step written by hand.

A step of a small model on a CPU is half arithmetic and half getting from one small operation to the next. So there
are fewer of them: query, key and value come from one product and gate and up from another, residuals are added within
the products, positions are looked up in a table, and the keys and values of all layers lie in one tensor, of which a
step cuts the views it needs at once. Attention is by sequence, without padding.

Numbers differ from the stock model's in the last bits, since sums round elsewhere; for one and the same batch they are
the same on every run.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.backends.attention import BY_PRODUCTS, IN_ONE_PIECE, attend_one
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


class _Batch(NamedTuple):
    """The ids of a step, and by layer and sequence views of KV: where new ones go, and all up to them.

    counts: each sequence's number of ids, and of rows of padding behind them all. masks: see `attention.Attention`.
    """

    ids: list[int]
    positions: list[int]
    counts: list[int]
    targets: Sequence[Sequence[Tensor]]  # [2, kv heads, count, dim]
    keys: Sequence[Sequence[Tensor]]  # [1, kv heads, past + count, dim]
    values: Sequence[Sequence[Tensor]]
    masks: list[Tensor | None]


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
        self._attention = BY_PRODUCTS if packed else IN_ONE_PIECE
        self._num_heads = int(config.num_attention_heads)
        self._num_kv_heads = int(config.num_key_value_heads)
        self._dim = int(getattr(config, "head_dim", None) or config.hidden_size // self._num_heads)
        self._query_shape = self._num_kv_heads, self._num_heads // self._num_kv_heads, self._dim
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
        batch = self._batch(work)
        place = torch.tensor(batch.positions, device=device)
        cos, sin = self._cos[place], self._sin[place]
        rows = self._embedding[torch.tensor(batch.ids, device=device)]
        width = rows.shape[1]
        padding = rows.new_zeros(batch.counts[-1], *self._query_shape)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(rows, (width,), layer.norm_in, self._eps))
            rows = layer.out.plus(self._attend(index, batch, qkv, cos, sin, padding), rows)
            gate, up = layer.gate_up(F.rms_norm(rows, (width,), layer.norm_mlp, self._eps)).chunk(2, -1)
            rows = layer.down.plus(F.silu(gate).mul_(up), rows)
        last = [end - 1 for end in accumulate(batch.counts[:-1])]
        if self._pads:
            last += last[:1] * (num_rows_for(len(last)) - len(last))
        rows = rows[torch.tensor(last, device=device)]
        return self._head(F.rms_norm(rows, (width,), self._norm, self._eps))[: len(work)]

    def _batch(self, work: Sequence[tuple[StackedKV, Sequence[int]]]) -> _Batch:
        ids: list[int] = []
        positions: list[int] = []
        masks: list[Tensor | None] = []
        for kv, new_ids in work:
            past, count = kv.length, len(new_ids)
            masks.append(self._attention.mask(count, past, self._embedding.device) if count > 1 else None)
            ids.extend(new_ids)
            positions.extend(range(past, past + count))
        counts = [len(new_ids) for _, new_ids in work]
        grains = [self._attention.grain if count > 1 else 1 for count in counts]
        views = [kv.views(count, grain) for (kv, _), count, grain in zip(work, counts, grains, strict=True)]
        targets, keys, values = (list(zip(*by_sequence, strict=True)) for by_sequence in zip(*views, strict=True))
        num_padding = num_rows_for(len(ids)) - len(ids) if self._pads else 0
        padding = [0] * num_padding
        return _Batch(ids + padding, positions + padding, [*counts, num_padding], targets, keys, values, masks)

    def _attend(self, index: int, batch: _Batch, qkv: Tensor, cos: Tensor, sin: Tensor, padding: Tensor) -> Tensor:
        """One layer's attention. qkv: [tokens, (heads + 2 kv heads) * dim]. Returns [tokens, heads * dim]."""
        heads, kv_heads, half = self._num_heads, self._num_kv_heads, self._dim // 2
        split = qkv.view(-1, heads + 2 * kv_heads, self._dim)
        turning = split[:, : heads + kv_heads]
        swapped = torch.cat([turning[..., half:], turning[..., :half]], -1)
        turning.mul_(cos).addcmul_(swapped, sin)  # in place, so that keys stay beside their values
        # Cut for all sequences at once: a call for each of them would be most of what a step of eight tokens takes.
        new = split[:, heads:].view(-1, 2, kv_heads, self._dim).permute(1, 2, 0, 3).split(batch.counts, 2)
        torch._foreach_copy_(batch.targets[index], new[:-1])
        queries = split[:, :heads].view(-1, *self._query_shape).split(batch.counts)
        outputs = [
            attend_one(query, keys, values) if query.shape[0] == 1 else self._attention.many(query, keys, values, mask)
            for query, keys, values, mask in zip(
                queries[:-1], batch.keys[index], batch.values[index], batch.masks, strict=True
            )
        ]
        return torch.cat([*outputs, padding]).view(-1, heads * self._dim)
