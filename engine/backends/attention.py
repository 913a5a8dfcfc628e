"""Attention of one sequence's new tokens to all of its tokens, in the ways that are quick on one machine or another.

Queries come, and results go, as [new, kv heads, group, dim]: `group` query heads share a kv head. Keys and values are
[1, kv heads, past + new, dim].

What torch has in one piece keeps to memory that does not grow, which is what a GPU needs. With bf16 on a CPU it comes
to a quarter of what the processor multiplies otherwise, so several tokens take two products with a softmax between
them: a step with 59 tokens behind 1,541 spends 39 ms there and not 74. Scores are rounded to bf16 on the way, and yet
the default model's logits are as near to float32's as they were (over 3,000 tokens of our documents, a mean of 0.085
beside 0.097, KL 0.0013 beside 0.0014): the piece from torch is no more exact elsewhere. One token alone is quicker in
one piece, since oneDNN makes a kernel for each number of keys.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.backends.stacked_kv import rounded_up

# Bytes of scores at a time: as many as stay in the cache, and in a heap that keeps its pages (see `worker_link`).
_MOST_SCORES: Final = 7 << 20

# What comes of a token is the same, bit for bit, however its prompt is cut, where products are over multiples of so
# many keys, and no more than 1,024 of them for the first 1,024 tokens: beyond those oneDNN adds up in another order.
GRAIN: Final = 64
_FEW_KEYS: Final = 1024


def padded(length: int) -> int:
    """The next multiple of GRAIN."""
    return rounded_up(length, GRAIN)


class Attention(NamedTuple):
    """mask: what `many` needs for (new, past, device), the same in every layer. many: see `in_one_piece`.

    grain: of how many keys and values `many` wants a multiple, with zeros behind the end.
    """

    mask: Callable[[int, int, torch.device], Tensor | None]
    many: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    grain: int = 1


def attend_one(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One new token: its heads become query rows of the kv head they share, so keys need not be repeated."""
    return F.scaled_dot_product_attention(query, keys, values)


def in_one_piece(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Several new tokens, in any dtype on any device."""
    output = F.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(0, 1)[None],
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query.shape[2] > 1,
    )
    return output[0].transpose(0, 1).reshape(query.shape)


def _where_allowed(new: int, past: int, device: torch.device) -> Tensor | None:
    """[new, past + new] bool; None for what is causal from the beginning."""
    return torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past) if past else None


def by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Several new tokens, in bf16 on a CPU. keys, values: to the next multiple of GRAIN, with zeros behind the end."""
    assert mask is not None
    new, kv_heads, group, dim = query.shape
    past = keys.shape[2] - mask.shape[1]
    rows = query.permute(1, 2, 0, 3) * dim**-0.5
    outputs = []
    most = _MOST_SCORES // (kv_heads * group * keys.shape[2] * query.element_size())
    start = 0
    while start < new:
        first = past + start
        end = min(new, start + max(1, most), _FEW_KEYS - past if first < _FEW_KEYS else new)
        seen = padded(past + end)
        part = rows[:, :, start:end].reshape(kv_heads, -1, dim)
        scores = torch.bmm(part, keys[0, :, :seen].transpose(1, 2))
        latest = scores.view(kv_heads, group, end - start, seen)[..., past:]
        latest.masked_fill_(mask[start:end, : seen - past], -torch.inf)
        output = torch.bmm(torch.softmax(scores, -1), values[0, :, :seen])
        outputs.append(output.view(kv_heads, group, end - start, dim))
        start = end
    return torch.cat(outputs, 2).permute(2, 0, 1, 3)


def _where_forbidden(new: int, past: int, device: torch.device) -> Tensor:
    """[new, new and padding] bool, of the new tokens among each other."""
    return torch.ones(new, padded(past + new) - past, dtype=torch.bool, device=device).triu(1)


IN_ONE_PIECE: Final = Attention(_where_allowed, in_one_piece)
BY_PRODUCTS: Final = Attention(_where_forbidden, by_products, GRAIN)
