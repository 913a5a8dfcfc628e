"""The local model without a server around it: what `longloop bench local` compares with.

    python -m engine.bench.bare_model FOLDER THREADS

Reads a task as a line of JSON and writes its seconds as one, until its input ends. The code that takes a step is the
server's own; there is no process to talk to, no grammar, no text and nobody else.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from engine.backends.loading import Loaded, load

CHUNK: Final = 256


class Bare:
    """A model, and one sequence whose KV is kept from task to task."""

    def __init__(self, model: Loaded) -> None:
        self._model = model
        self._kept = model.new_kv()
        self._rng = Random(0)

    def prefill(self, length: int) -> float:
        """Seconds until a new context of so many ids has been taken in; it is kept."""
        self._kept = self._model.new_kv()
        ids = self._ids(length)
        began = time.perf_counter()
        self._take_in(self._kept, ids)
        return time.perf_counter() - began

    def resume(self, new: int) -> float:
        """Seconds until so many more ids have been taken in behind the context that was kept."""
        ids = self._ids(new)
        began = time.perf_counter()
        self._take_in(self._kept, ids)
        return time.perf_counter() - began

    def decode(self, batch: int, length: int, steps: int) -> float:
        """Seconds of so many steps of one id for each of `batch` contexts of so many ids."""
        kvs = [self._model.new_kv() for _ in range(batch)]
        for kv in kvs:
            self._take_in(kv, self._ids(length))
        ids = [1] * batch
        began = time.perf_counter()
        for _ in range(steps):
            rows = self._model.step([(kv, [id_]) for kv, id_ in zip(kvs, ids, strict=True)])
            ids = [int(id_) for id_ in np.argmax(rows, 1)]
        return time.perf_counter() - began

    def _take_in(self, kv: Any, ids: list[int]) -> None:
        for start in range(0, len(ids), CHUNK):
            self._model.step([(kv, ids[start : start + CHUNK])])

    def _ids(self, count: int) -> list[int]:
        return [self._rng.randrange(self._model.vocab_size // 2) for _ in range(count)]


def main(folder: Path, threads: int) -> None:
    """The process."""
    model = load(folder, dtype="bfloat16", threads=threads, device="auto", progress=lambda *_: None)
    bare = Bare(model)
    tasks: dict[str, Callable[..., float]] = {
        "prefill": bare.prefill,
        "resume": bare.resume,
        "decode": bare.decode,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps(tasks[task.pop("task")](**task)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
