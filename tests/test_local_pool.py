"""local_pool.py over two workers with a model that needs no torch."""

import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from engine.backends.base import StepEnd, StepSpec
from engine.backends.local import open_local_backend
from engine.backends.local_pool import LocalPool
from engine.errors import NotFound
from tests.local_model import MODEL_ID, NumbersPrompt, local_model, message, spec
from tests.tiny import save_tokenizer

FAKE = (sys.executable, "-m", "tests.fake_model")


@asynccontextmanager
async def opened(folder):
    save_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    with trio.fail_after(60):
        async with AsyncExitStack() as stack:
            options = {"max_kv_bytes": 1 << 20, "worker": FAKE}
            backends = [
                await stack.enter_async_context(
                    open_local_backend(local_model(folder), lambda _: NumbersPrompt(), **options)
                )
                for _ in range(2)
            ]
            yield LocalPool(backends), backends


async def give(sequence, ids):
    sequence.commit(await sequence.prepare([message(ids)]))


async def finish(sequence):
    while not isinstance((await sequence.next_deltas())[-1], StepEnd):
        pass


async def test_runs_go_where_there_is_least_to_do_and_stay_there(tmp_path):
    async with opened(tmp_path) as (pool, backends):
        assert [model.id for model in pool.models()] == [MODEL_ID]
        assert pool.resolve(None).id == MODEL_ID
        with pytest.raises(NotFound):
            pool.resolve("other")
        assert not pool.is_ready
        await pool.wait_ready()
        assert pool.is_ready
        first, second = pool.open_sequence(spec()), pool.open_sequence(spec())
        assert [backend.load().paused for backend in backends] == [1, 1]
        await give(first, [100, 101])
        first.start_step(StepSpec(max_tokens=2000))
        third = pool.open_sequence(spec())
        assert [backend.load().paused for backend in backends] == [0, 2]
        assert pool.load().running == 1
        await finish(first)
        first.fork("resp_2")
        assert [backend.load().paused for backend in backends] == [2, 2]
        for sequence in (second, third):
            await give(sequence, [100])
            sequence.start_step(StepSpec(max_tokens=5))
            await finish(sequence)
        assert pool.load().tokens_prefilled == 3 + 2 + 2
