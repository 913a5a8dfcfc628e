"""Fifty runs at once on the local backend, disturbed in every way: what their logs say is what the model says.

With the fake model, whose logits depend on every id, each id that was drawn must be the one that an undisturbed run
draws at that place. With the real one (fp32), it must be the likeliest there, or as likely but for 0.001 of a logit.
"""

import os
import sys

import torch
import trio
from transformers import AutoModelForCausalLM

from engine.backends.local import open_local_backend
from engine.backends.pretrained import resolve
from engine.backends.sampling import Sampler
from tests.chaos import Chaos, Outcome
from tests.fake_model import BYTES_PER_TOKEN, logits_after
from tests.local_model import NumbersPrompt, local_model
from tests.tiny import save_tokenizer
from tests.tiny_model import make_network, save_model

REAL = (sys.executable, "-m", "engine.backends.worker")
FAKE = (sys.executable, "-m", "tests.fake_model")
TIE = 1e-3
NUM_RUNS = 50


async def play(
    folder, worker, kv_bytes: int, temperatures: tuple[float, ...], num_turns: int, steps_per_kill: int
) -> Outcome:
    options = {"worker": worker, "max_kv_bytes": kv_bytes, "dtype": "float32", "threads": 1, "max_step_ms": 50}
    with trio.fail_after(1200 if "LONGLOOP_SOAK_MODEL" in os.environ else 120):
        async with open_local_backend(local_model(folder), lambda _: NumbersPrompt(), **options) as backend:
            await backend.wait_ready()
            chaos = Chaos(backend, lambda: kill(backend), seed=1, steps_per_kill=steps_per_kill)
            outcome = await chaos.play(NUM_RUNS, num_turns, temperatures)
            load = backend.load()
            assert (load.running, load.waiting, load.paused) == (0, 0, 0)
            assert load.tokens_evicted > 0
            assert load.tokens_reused > 0
    assert len(outcome.logs) == NUM_RUNS
    assert outcome.num_lost < NUM_RUNS / 4
    assert {"finished", "cancelled", "interrupted", "forked", "restored", "restarted"} <= outcome.ended.keys()
    return outcome


def kill(backend) -> None:
    if backend.worker_pid:
        backend._link._process.kill()


async def test_disturbed_runs_draw_what_undisturbed_ones_draw(tmp_path):
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    outcome = await play(tmp_path, FAKE, 2500 * BYTES_PER_TOKEN, (0.0, 0.9), 5, steps_per_kill=60)
    num_drawn = 0
    for of_run, log in outcome.logs:
        sampler = Sampler(temperature=of_run.temperature, seed=of_run.seed)
        for segment, place in drawn(log):
            ids = list(log.segment_ids(segment))
            assert sampler.draw(logits_after(ids[:place]), place) == ids[place]
            num_drawn += 1
    assert num_drawn > 1000


async def test_logs_of_disturbed_runs_replay_through_the_model(tmp_path):
    """LONGLOOP_SOAK_MODEL: another model than the tiny one, as `tests/soak.sh` takes it."""
    if name := os.environ.get("LONGLOOP_SOAK_MODEL"):
        folder = resolve(name, lambda *_: None)
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        shape = network.config
        kv_bytes = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 4
    else:
        folder, network, kv_bytes = save_model(tmp_path), make_network(), 2 * 2 * 2 * 16 * 4
    outcome = await play(folder, REAL, 2500 * kv_bytes, (0.0,), 3, steps_per_kill=100)
    with torch.inference_mode():
        for _, log in outcome.logs:
            for segment in range(log.segment + 1):
                ids = list(log.segment_ids(segment))
                rows = network(torch.tensor([ids])).logits[0] if ids else ()
                for place in (place for of, place in drawn(log) if of == segment):
                    row = rows[place - 1]
                    assert float(row.max() - row[ids[place]]) < TIE


def drawn(log) -> list[tuple[int, int]]:
    """Segment and place of each id that was sampled."""
    return [
        (span.segment, span.offset + index) for span in log.since(0) if span.sampled for index in range(len(span.ids))
    ]
