"""attention.py: the way by products against torch's own, and against the plain formula in double precision."""

import pytest
import torch

from engine.backends import attention
from engine.backends.attention import BY_PRODUCTS, IN_ONE_PIECE, attend_one


def made(new: int, past: int, kv_heads: int, group: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(new + past)
    query = torch.randn(new, kv_heads, group, dim)
    keys, values = torch.randn(2, 1, kv_heads, past + new, dim).unbind(0)
    return query.bfloat16(), keys.bfloat16(), values.bfloat16()


def expected(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    new, past = query.shape[0], keys.shape[2] - query.shape[0]
    scores = torch.einsum("nkgd,ktd->kgnt", query.double(), keys[0].double()) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(new, past + new).triu(past + 1).bool(), -torch.inf)
    return torch.einsum("kgnt,ktd->nkgd", scores.softmax(-1), values[0].double())


@pytest.mark.parametrize("kind", [IN_ONE_PIECE, BY_PRODUCTS])
@pytest.mark.parametrize(("new", "past"), [(2, 0), (40, 0), (2, 30), (59, 487)])
@pytest.mark.parametrize(("kv_heads", "group", "dim"), [(3, 3, 64), (2, 1, 16), (1, 4, 40)])
def test_several_tokens_look_at_all_before_them(kind, new, past, kv_heads, group, dim):
    query, keys, values = made(new, past, kv_heads, group, dim)
    output = kind.many(query, keys, values, kind.mask(new, past, query.device))
    assert output.shape == query.shape
    assert (output - expected(query, keys, values)).abs().max() < 0.03


@pytest.mark.parametrize("most", [1, 2_000, 20_000])
def test_scores_are_made_in_parts_of_a_size(most, monkeypatch):
    query, keys, values = made(59, 100, 3, 3, 64)
    whole = BY_PRODUCTS.many(query, keys, values, BY_PRODUCTS.mask(59, 100, query.device))
    sizes = []
    softmax = torch.softmax
    monkeypatch.setattr(attention, "_MOST_SCORES", most)
    monkeypatch.setattr(torch, "softmax", lambda scores, dim: sizes.append(scores.nbytes) or softmax(scores, dim))
    parts = BY_PRODUCTS.many(query, keys, values, BY_PRODUCTS.mask(59, 100, query.device))
    assert (parts - whole).abs().max() < 0.02
    assert len(sizes) > 1
    assert max(sizes) <= max(most, 9 * 159 * 2)


def test_one_token_looks_at_all():
    query, keys, values = made(1, 200, 3, 3, 64)
    assert (attend_one(query, keys, values) - expected(query, keys, values)).abs().max() < 0.02
