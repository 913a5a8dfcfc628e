"""A model's steps beside the stock model's forward, for tests of both ways through a model."""

from typing import Any

import numpy as np
import torch

IDS = [int(id_) for id_ in np.random.default_rng(0).integers(3, 280, 700)]


def expected(stock: Any, ids: list[int]) -> np.ndarray:
    """The stock model's logits after the last id."""
    with torch.inference_mode():
        return stock(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float().numpy()


def feed(model: Any, kv: Any, ids: list[int], *chunks: int) -> np.ndarray:
    """Step through ids in chunks of these sizes and then the rest; the last logits."""
    start, row = 0, None
    for size in [*chunks, len(ids) - sum(chunks)]:
        row = model.step([(kv, ids[start : start + size])])[0]
        start += size
    return row
