"""A model without torch whose logits depend on every id and position it was given, and a worker around it.

Whoever loses, repeats or misplaces one id gets other logits ever after, so equal ids prove equal contexts.

    python -m tests.fake_model FOLDER --stop-ids 2        speaks as engine.backends.worker does

With a file `says.json` in the folder, a list of ids, it is a model that wants to say these and nothing else.
"""

import json
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.frames import Loading, Ready
from engine.backends.guide import Guides
from engine.backends.jobs import Jobs
from engine.backends.scheduler import Pace
from engine.backends.worker import Output, main
from tests.tiny import STOP_ID, VOCAB_SIZE

BYTES_PER_TOKEN = 100


class FakeKV:
    """Its keys and values are the ids themselves."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids = list(ids)

    @property
    def length(self) -> int:
        return len(self.ids)

    def crop(self, length: int) -> None:
        del self.ids[length:]

    def copy(self, length: int) -> "FakeKV":
        return FakeKV(self.ids[:length])


class FakeModel:
    """`steps`: the sizes of each batch so far. The stop id comes only where a grammar leaves nothing else."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def new_kv(self) -> FakeKV:
        return FakeKV()

    def step(self, work: Sequence[tuple[FakeKV, Sequence[int]]]) -> NDArray[np.float32]:
        self.steps.append([len(ids) for _, ids in work])
        for kv, ids in work:
            kv.ids += ids
        return np.stack([logits_after(kv.ids) for kv, _ in work])


class Parrot(FakeModel):
    """Goes on with what it says, wherever the context has it already, and begins with it elsewhere."""

    def __init__(self, says: Sequence[int]) -> None:
        super().__init__()
        self._says = list(says)

    def step(self, work: Sequence[tuple[FakeKV, Sequence[int]]]) -> NDArray[np.float32]:
        rows = super().step(work)
        for (kv, _), row in zip(work, rows, strict=True):
            row[self._next(kv.ids)] = 100
        return rows

    def _next(self, ids: list[int]) -> int:
        said = max(size for size in range(len(self._says)) if not size or ids[-size:] == self._says[:size])
        return self._says[said]


def logits_after(ids: Sequence[int]) -> NDArray[np.float32]:
    """[vocab] logits that no other context has."""
    seed = zlib.crc32(np.array(ids, np.int64).tobytes())
    row = np.random.default_rng(seed).normal(0, 1, VOCAB_SIZE).astype(np.float32)
    row[STOP_ID] = -100
    return row


def greedy(ids: Sequence[int], count: int) -> list[int]:
    """The next ids that temperature 0 gives."""
    context = list(ids)
    for _ in range(count):
        context.append(int(logits_after(context).argmax()))
    return context[len(ids) :]


def load(args: Namespace, output: Output, began: float) -> Jobs:
    output.send([Loading("weights", 1, 1)])
    guides = Guides(args.folder / "tokenizer.json", vocab_size=VOCAB_SIZE, stop_ids=args.stop_ids)
    output.send([Ready(BYTES_PER_TOKEN, VOCAB_SIZE, 0.0)])
    says = args.folder / "says.json"
    model = Parrot(json.loads(says.read_text())) if says.exists() else FakeModel()
    return Jobs(model, guides, time.perf_counter, Pace(args.max_step_ms / 1e3))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load))
