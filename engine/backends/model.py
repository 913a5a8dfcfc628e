"""Any stock transformers causal LM, taking any number of sequences through one step.

`Model.step` takes ids of several sequences, whole prompts and single tokens mixed, and returns the logits that follow
each one's last id. Attention is that of `ragged.py`; linear layers are packed where that pays (see `linears.py`).

All calls must come from one thread: OpenMP keeps a pool per calling thread, and a second one costs 45 %.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.backends import linears, ragged
from engine.backends.ragged import KV, Part


class UnsupportedModel(Exception):
    """The model needs something of its attention that ours has not got."""


class PackedLinear(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """In the place of a bf16 linear layer. Results are bit-identical; inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._product = linears.PackedLinear(linear.weight.detach(), linear.bias)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, rows: Tensor) -> Tensor:
        """rows: [..., in_features]; returns [..., out_features]."""
        return self._product(rows)


class Model:
    """A loaded model and the shape of its cache."""

    def __init__(self, network: nn.Module, *, packed: bool) -> None:
        """network: a causal LM. packed: replace its linear layers (bf16 on a CPU only). Raises UnsupportedModel."""
        config = network.config.get_text_config()
        _check_supported(config)
        ragged.register()
        network.set_attn_implementation(ragged.NAME)
        network.eval().requires_grad_(False)
        if packed:
            _pack_linears(network)
        self._network = network
        self._pads = packed
        self._device = network.device
        self._num_layers = int(config.num_hidden_layers)
        self.vocab_size = int(config.vocab_size)
        self.kv_bytes_per_token = _kv_bytes_per_token(config, next(network.parameters()).element_size())

    def new_kv(self) -> KV:
        """The KV of an empty sequence."""
        return KV(self._num_layers)

    def step(self, work: Sequence[tuple[KV, Sequence[int]]]) -> NDArray[np.float32]:
        """Take each sequence's next ids (at least one) through the model and into its KV.

        Returns [len(work), vocab]: the logits after each one's last id.
        """
        parts: list[Part] = []
        ids: list[int] = []
        positions: list[int] = []
        for kv, new_ids in work:
            parts.append(Part(kv, len(ids), len(new_ids), self._device))
            ids.extend(new_ids)
            positions.extend(range(kv.length, kv.length + len(new_ids)))
        if self._pads:
            padding = [0] * (linears.num_rows_for(len(ids)) - len(ids))
            ids, positions = ids + padding, positions + padding
        logits = self._forward(parts, self._tensor([ids]), self._tensor([positions]))
        for part in parts:
            part.kv.advance(part.count)
        rows: NDArray[np.float32] = logits.float().cpu().numpy()
        return rows

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, device=self._device)

    def _forward(self, parts: list[Part], ids: Tensor, positions: Tensor) -> Tensor:
        last = [part.start + part.count - 1 for part in parts]
        if self._pads:
            last += last[:1] * (linears.num_rows_for(len(last)) - len(last))
        with torch.inference_mode():
            output = self._network(
                input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=self._tensor(last), parts=parts
            )
        logits: Tensor = output.logits[0, : len(parts)]
        return logits


def _pack_linears(network: nn.Module) -> None:
    linears = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    for name in linears:
        parent, _, attribute = name.rpartition(".")
        linear = network.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        setattr(network.get_submodule(parent), attribute, PackedLinear(linear))


def _check_supported(config: Any) -> None:
    if getattr(config, "attn_logit_softcapping", None):
        raise UnsupportedModel(f"{config.model_type}: capped attention logits")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise UnsupportedModel(f"{config.model_type}: layers of kind {', '.join(sorted(kinds))}")


def _kv_bytes_per_token(config: Any, element_bytes: int) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * 2 * heads * head_dim * element_bytes)
