"""attention.py: the way by products against torch's own, and against the plain formula in double precision."""

from itertools import pairwise

import pytest
import torch

from engine.backends import attention
from engine.backends.attention import BY_PRODUCTS, IN_ONE_PIECE, Attention, attend_one, padded


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


def attend(kind: Attention, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    new, length = query.shape[0], keys.shape[2]
    if kind is BY_PRODUCTS:
        keys, values = (torch.nn.functional.pad(part, (0, 0, 0, padded(length) - length)) for part in (keys, values))
    return kind.many(query, keys, values, kind.mask(new, length - new, query.device))


@pytest.mark.parametrize("kind", [IN_ONE_PIECE, BY_PRODUCTS])
@pytest.mark.parametrize(("new", "past"), [(2, 0), (40, 0), (2, 30), (59, 487)])
@pytest.mark.parametrize(("kv_heads", "group", "dim"), [(3, 3, 64), (2, 1, 16), (1, 4, 40)])
def test_several_tokens_look_at_all_before_them(kind, new, past, kv_heads, group, dim):
    query, keys, values = made(new, past, kv_heads, group, dim)
    output = attend(kind, query, keys, values)
    assert output.shape == query.shape
    assert (output - expected(query, keys, values)).abs().max() < 0.03


@pytest.mark.parametrize(
    ("past", "new", "cuts"), [(0, 600, [100, 300]), (395, 806, [400]), (990, 300, [3, 33, 40]), (1500, 140, [77])]
)
def test_what_comes_of_several_tokens_does_not_depend_on_how_they_are_cut(past, new, cuts):
    """Bit for bit, but for a token alone."""
    query, keys, values = made(new, past, 3, 3, 64)
    whole = attend(BY_PRODUCTS, query, keys, values)
    for start, end in pairwise([0, *cuts, new]):
        seen = past + end
        part = attend(BY_PRODUCTS, query[start:end], keys[:, :, :seen], values[:, :, :seen])
        assert torch.equal(part, whole[start:end])


@pytest.mark.parametrize("most", [1, 2_000, 20_000])
def test_scores_are_made_in_parts_of_a_size(most, monkeypatch):
    query, keys, values = made(59, 100, 3, 3, 64)
    whole = attend(BY_PRODUCTS, query, keys, values)
    sizes = []
    softmax = torch.softmax
    monkeypatch.setattr(attention, "_MOST_SCORES", most)
    monkeypatch.setattr(torch, "softmax", lambda scores, dim: sizes.append(scores.nbytes) or softmax(scores, dim))
    parts = attend(BY_PRODUCTS, query, keys, values)
    assert (parts - whole).abs().max() < 0.02
    assert len(sizes) > 1
    assert max(sizes) <= max(most, 9 * 192 * 2)


def test_one_token_looks_at_all():
    query, keys, values = made(1, 200, 3, 3, 64)
    assert (attend_one(query, keys, values) - expected(query, keys, values)).abs().max() < 0.02
